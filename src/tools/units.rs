//! Conversion of units.

use antiphon_agent::{FuncTool, Tool, ToolError};
use antiphon_types::ToolSpeech;
use serde::Deserialize;
use serde_json::json;

use super::{output, read_args};

/// The tool `convert_units`: lengths, masses, volumes, temperatures, speeds, areas, times and
/// amounts of data.
pub fn convert_units() -> impl Tool {
    let names: Vec<&str> = UNITS.iter().map(|unit| unit.name).collect();
    let schema = json!({
        "type": "object",
        "properties": {
            "value": {"type": "number", "description": "How many."},
            "from": {"type": "string", "enum": names, "description": "The unit of the value."},
            "to": {"type": "string", "enum": names, "description": "The unit to convert to."},
        },
        "required": ["value", "from", "to"],
        "additionalProperties": false,
    });
    FuncTool::new(
        "convert_units",
        "Converts a value from one unit to another, such as 5 miles to kilometers.",
        schema,
        |_, args| async move {
            let Conversion { value, from, to } = read_args(args)?;
            let result = convert(value, &from, &to)?;
            Ok(output(json!({
                "value": tidy(value), "from": from, "result": tidy(result), "to": to
            })))
        },
    )
    .speech(
        ToolSpeech::phrases([
            "convert {value} {from} to {to}",
            "convert {value} {from} into {to}",
            "how many {to} are {value} {from}",
            "how many {to} are in {value} {from}",
            "how much is {value} {from} in {to}",
            "what is {value} {from} in {to}",
            "what are {value} {from} in {to}",
            "{value} {from} in {to}",
        ])
        .answer("{value} {from} are {result} {to}.")
        .question("value", "How many?")
        .question("from", "From which unit?")
        .question("to", "Into which unit?"),
    )
}

#[derive(Deserialize)]
struct Conversion {
    value: f64,
    from: String,
    to: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantity {
    Length,
    Mass,
    Volume,
    Temperature,
    Speed,
    Area,
    Time,
    Data,
}

/// A value in this unit times `scale` plus `offset` is the value in the unit that all of the
/// quantity share: metre, kilogram, litre, kelvin, metre per second, square metre, second, byte.
struct Unit {
    name: &'static str,
    quantity: Quantity,
    scale: f64,
    offset: f64,
}

const fn unit(name: &'static str, quantity: Quantity, scale: f64) -> Unit {
    Unit { name, quantity, scale, offset: 0.0 }
}

/// Definitions: the international yard and pound of 1959, US customary volumes, BIPM for the
/// rest.
const UNITS: &[Unit] = &[
    unit("millimeters", Quantity::Length, 0.001),
    unit("centimeters", Quantity::Length, 0.01),
    unit("meters", Quantity::Length, 1.0),
    unit("kilometers", Quantity::Length, 1_000.0),
    unit("inches", Quantity::Length, 0.0254),
    unit("feet", Quantity::Length, 0.3048),
    unit("yards", Quantity::Length, 0.9144),
    unit("miles", Quantity::Length, 1_609.344),
    unit("nautical miles", Quantity::Length, 1_852.0),
    unit("grams", Quantity::Mass, 0.001),
    unit("kilograms", Quantity::Mass, 1.0),
    unit("ounces", Quantity::Mass, 0.028_349_523_125),
    unit("pounds", Quantity::Mass, 0.453_592_37),
    unit("stone", Quantity::Mass, 6.350_293_18),
    unit("tonnes", Quantity::Mass, 1_000.0),
    unit("milliliters", Quantity::Volume, 0.001),
    unit("liters", Quantity::Volume, 1.0),
    unit("teaspoons", Quantity::Volume, 0.004_928_921_593_75),
    unit("tablespoons", Quantity::Volume, 0.014_786_764_781_25),
    unit("cups", Quantity::Volume, 0.236_588_236_5),
    unit("pints", Quantity::Volume, 0.473_176_473),
    unit("quarts", Quantity::Volume, 0.946_352_946),
    unit("gallons", Quantity::Volume, 3.785_411_784),
    Unit { name: "celsius", quantity: Quantity::Temperature, scale: 1.0, offset: 273.15 },
    Unit {
        name: "fahrenheit",
        quantity: Quantity::Temperature,
        scale: 5.0 / 9.0,
        offset: 459.67 * 5.0 / 9.0,
    },
    unit("kelvin", Quantity::Temperature, 1.0),
    unit("meters per second", Quantity::Speed, 1.0),
    unit("kilometers per hour", Quantity::Speed, 1.0 / 3.6),
    unit("miles per hour", Quantity::Speed, 0.447_04),
    unit("knots", Quantity::Speed, 1_852.0 / 3_600.0),
    unit("square meters", Quantity::Area, 1.0),
    unit("square feet", Quantity::Area, 0.092_903_04),
    unit("hectares", Quantity::Area, 10_000.0),
    unit("acres", Quantity::Area, 4_046.856_422_4),
    unit("seconds", Quantity::Time, 1.0),
    unit("minutes", Quantity::Time, 60.0),
    unit("hours", Quantity::Time, 3_600.0),
    unit("days", Quantity::Time, 86_400.0),
    unit("weeks", Quantity::Time, 604_800.0),
    unit("bytes", Quantity::Data, 1.0),
    unit("kilobytes", Quantity::Data, 1e3),
    unit("megabytes", Quantity::Data, 1e6),
    unit("gigabytes", Quantity::Data, 1e9),
    unit("terabytes", Quantity::Data, 1e12),
];

fn convert(value: f64, from: &str, to: &str) -> Result<f64, ToolError> {
    let from = find(from)?;
    let to = find(to)?;
    if from.quantity != to.quantity {
        return Err(ToolError::new(format!("{} cannot be converted to {}", from.name, to.name)));
    }
    let result = (value * from.scale + from.offset - to.offset) / to.scale;
    if result.is_finite() { Ok(result) } else { Err(ToolError::new("the number is too large")) }
}

fn find(name: &str) -> Result<&'static Unit, ToolError> {
    UNITS
        .iter()
        .find(|unit| unit.name == name)
        .ok_or_else(|| ToolError::new(format!("unknown unit: {name}")))
}

/// As many digits as one would say: two decimals, or three significant ones for small numbers.
/// Whole numbers come out as integers.
fn tidy(value: f64) -> serde_json::Value {
    let magnitude = value.abs();
    let decimals = if magnitude >= 1.0 || magnitude == 0.0 {
        2
    } else {
        (2 - magnitude.log10().floor() as i32).clamp(2, 12)
    };
    let factor = 10f64.powi(decimals);
    let rounded = (value * factor).round() / factor;
    if rounded.fract() == 0.0 && rounded.abs() < 9e15 {
        json!(rounded as i64)
    } else {
        json!(rounded)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn near(value: f64, from: &str, to: &str, expected: f64) {
        let got = convert(value, from, to).unwrap();
        assert!((got - expected).abs() < 1e-6 * expected.abs().max(1.0), "{got} != {expected}");
    }

    #[test]
    fn known_conversions() {
        near(5.0, "miles", "kilometers", 8.046_72);
        near(100.0, "celsius", "fahrenheit", 212.0);
        near(-40.0, "fahrenheit", "celsius", -40.0);
        near(0.0, "kelvin", "celsius", -273.15);
        near(1.0, "gallons", "cups", 16.0);
        near(10.0, "stone", "pounds", 140.0);
        near(100.0, "kilometers per hour", "miles per hour", 62.137_119_22);
    }

    #[test]
    fn a_length_is_no_mass() {
        let error = convert(1.0, "miles", "kilograms").unwrap_err();
        assert_eq!(error.message, "miles cannot be converted to kilograms");
    }

    #[test]
    fn results_are_rounded_as_one_would_say_them() {
        assert_eq!(tidy(8.046_72), json!(8.05));
        assert_eq!(tidy(212.000_000_1), json!(212));
        assert_eq!(tidy(0.001_234_5), json!(0.001_23));
        assert_eq!(tidy(0.0), json!(0));
    }

    proptest! {
        #[test]
        fn there_and_back_is_the_same(value in -1e6f64..1e6, a in 0..UNITS.len(), b in 0..UNITS.len()) {
            if UNITS[a].quantity == UNITS[b].quantity {
                let there = convert(value, UNITS[a].name, UNITS[b].name).unwrap();
                let back = convert(there, UNITS[b].name, UNITS[a].name).unwrap();
                prop_assert!((back - value).abs() <= 1e-6 * value.abs().max(1.0));
            }
        }
    }
}
