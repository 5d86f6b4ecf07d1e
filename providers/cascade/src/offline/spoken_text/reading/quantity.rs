//! Money, percentages, temperatures and other units.

use super::{Number, Reading, Word, cardinal};

pub(super) fn read<'a>(words: &[Word<'a>]) -> Option<Reading<'a>> {
    money(words).or_else(|| measure(words))
}

/// Names of a currency: one, several; one hundredth, several.
type Currency = [&'static str; 4];

const DOLLAR: Currency = ["dollar", "dollars", "cent", "cents"];
const EURO: Currency = ["euro", "euros", "cent", "cents"];
const POUND: Currency = ["pound", "pounds", "penny", "pence"];
const RUPEE: Currency = ["rupee", "rupees", "paisa", "paise"];
const YEN: Currency = ["yen", "yen", "", ""];

fn currency_of_sign(sign: char) -> Option<Currency> {
    match sign {
        '$' => Some(DOLLAR),
        '€' => Some(EURO),
        '£' => Some(POUND),
        '₹' => Some(RUPEE),
        '¥' => Some(YEN),
        _ => None,
    }
}

fn currency_of_code(code: &str) -> Option<Currency> {
    match code {
        "USD" => Some(DOLLAR),
        "EUR" => Some(EURO),
        "GBP" => Some(POUND),
        "INR" => Some(RUPEE),
        "JPY" => Some(YEN),
        _ => None,
    }
}

/// "$5.50", "-$3", "$2.5 million", "$3M", "12€", "5 USD", "USD 5".
fn money<'a>(words: &[Word<'a>]) -> Option<Reading<'a>> {
    let word = &words[0];
    let next = words.get(1).filter(|_| word.runs_on());
    if let Some(currency) = currency_of_code(word.core) {
        let amount = Number::parse(next?.core)?;
        return Some(Reading::of(amount_words(&amount, currency), &words[..2]));
    }
    if let Some(amount) = Number::parse(word.core) {
        let currency = currency_of_code(next?.core)?;
        return Some(Reading::of(amount_words(&amount, currency), &words[..2]));
    }

    let (negative, core) = match word.core.strip_prefix('-') {
        Some(core) => (true, core),
        None => (false, word.core),
    };
    let (currency, amount) = match core.chars().next().and_then(currency_of_sign) {
        Some(currency) => (currency, core.trim_start_matches(|c| currency_of_sign(c).is_some())),
        None => {
            let sign = core.chars().next_back()?;
            let amount = core.strip_suffix(sign)?;
            match sign {
                '¢' => return Some(Reading::of(counted(amount, "cent", "cents")?, &words[..1])),
                _ => (currency_of_sign(sign)?, amount),
            }
        }
    };
    let (amount, attached) = match amount.chars().next_back()? {
        'k' | 'K' => (&amount[..amount.len() - 1], Some("thousand")),
        'm' | 'M' => (&amount[..amount.len() - 1], Some("million")),
        'b' | 'B' => (&amount[..amount.len() - 1], Some("billion")),
        _ => (amount, None),
    };
    let mut amount = Number::parse(amount)?;
    amount.negative |= negative;
    let scales = ["hundred", "thousand", "million", "billion", "trillion"];
    let scale = next.map(|next| next.core).filter(|core| scales.contains(core));
    Some(match (attached, scale) {
        (Some(scale), _) => {
            Reading::of(format!("{} {scale} {}", amount.words(), currency[1]), &words[..1])
        }
        (None, Some(scale)) => {
            Reading::of(format!("{} {scale} {}", amount.words(), currency[1]), &words[..2])
        }
        (None, None) => Reading::of(amount_words(&amount, currency), &words[..1]),
    })
}

fn amount_words(amount: &Number, currency: Currency) -> String {
    let [one, many, hundredth, hundredths] = currency;
    let plain = |amount: &Number| {
        format!("{} {}", amount.words(), if amount.is_one() { one } else { many })
    };
    let Some(parts) = amount.part.parse::<u64>().ok().filter(|_| amount.part.len() == 2) else {
        return plain(amount);
    };
    if hundredth.is_empty() {
        return plain(amount);
    }
    let whole = Number { part: String::new(), ..amount.clone() };
    let parts_words =
        format!("{} {}", cardinal(parts), if parts == 1 { hundredth } else { hundredths });
    let nothing = whole.whole.bytes().all(|digit| digit == b'0');
    match (nothing, parts) {
        (_, 0) => plain(&whole),
        (true, _) if amount.negative => format!("minus {parts_words}"),
        (true, _) => parts_words,
        (false, _) => format!("{} and {parts_words}", plain(&whole)),
    }
}

/// Sign, one, several.
const UNITS: [(&str, &str, &str); 50] = [
    ("%", "percent", "percent"),
    ("°C", "degree Celsius", "degrees Celsius"),
    ("°F", "degree Fahrenheit", "degrees Fahrenheit"),
    ("°", "degree", "degrees"),
    ("km", "kilometer", "kilometers"),
    ("m", "meter", "meters"),
    ("cm", "centimeter", "centimeters"),
    ("mm", "millimeter", "millimeters"),
    ("mi", "mile", "miles"),
    ("ft", "foot", "feet"),
    ("yd", "yard", "yards"),
    ("kg", "kilogram", "kilograms"),
    ("g", "gram", "grams"),
    ("mg", "milligram", "milligrams"),
    ("lb", "pound", "pounds"),
    ("lbs", "pound", "pounds"),
    ("oz", "ounce", "ounces"),
    ("l", "liter", "liters"),
    ("L", "liter", "liters"),
    ("ml", "milliliter", "milliliters"),
    ("mL", "milliliter", "milliliters"),
    ("gal", "gallon", "gallons"),
    ("mph", "mile per hour", "miles per hour"),
    ("km/h", "kilometer per hour", "kilometers per hour"),
    ("kph", "kilometer per hour", "kilometers per hour"),
    ("m/s", "meter per second", "meters per second"),
    ("Hz", "hertz", "hertz"),
    ("kHz", "kilohertz", "kilohertz"),
    ("MHz", "megahertz", "megahertz"),
    ("GHz", "gigahertz", "gigahertz"),
    ("KB", "kilobyte", "kilobytes"),
    ("kB", "kilobyte", "kilobytes"),
    ("MB", "megabyte", "megabytes"),
    ("GB", "gigabyte", "gigabytes"),
    ("TB", "terabyte", "terabytes"),
    ("W", "watt", "watts"),
    ("kW", "kilowatt", "kilowatts"),
    ("kWh", "kilowatt hour", "kilowatt hours"),
    ("V", "volt", "volts"),
    ("dB", "decibel", "decibels"),
    ("ms", "millisecond", "milliseconds"),
    ("s", "second", "seconds"),
    ("sec", "second", "seconds"),
    ("secs", "second", "seconds"),
    ("min", "minute", "minutes"),
    ("mins", "minute", "minutes"),
    ("h", "hour", "hours"),
    ("hr", "hour", "hours"),
    ("hrs", "hour", "hours"),
    ("px", "pixel", "pixels"),
];

/// "5 km", "3.5kg", "20%", "-3 °F".
fn measure<'a>(words: &[Word<'a>]) -> Option<Reading<'a>> {
    let unit_named = |name: &str| UNITS.iter().find(|(sign, ..)| *sign == name);
    let word = &words[0];
    if let Some(number) = Number::parse(word.core) {
        let next = words.get(1).filter(|_| word.runs_on())?;
        let (_, one, many) = unit_named(next.core)?;
        let name = if number.is_one() { one } else { many };
        return Some(Reading::of(format!("{} {name}", number.words()), &words[..2]));
    }
    let digits = word.core.find(|c: char| !c.is_ascii_digit() && !matches!(c, '-' | ',' | '.'))?;
    let (number, unit) = word.core.split_at(digits);
    // "1990s" and "5s" look alike; four digits are a decade.
    if unit == "s" && number.len() == 4 {
        return None;
    }
    let (_, one, many) = unit_named(unit)?;
    Some(Reading::of(counted(number, one, many)?, &words[..1]))
}

fn counted(number: &str, one: &str, many: &str) -> Option<String> {
    let number = Number::parse(number)?;
    Some(format!("{} {}", number.words(), if number.is_one() { one } else { many }))
}
