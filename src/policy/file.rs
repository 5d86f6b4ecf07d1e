//! Policies, limits and what receipts show, as a file.

use std::{collections::HashSet, path::Path, sync::Arc, time::Duration};

use jiff::{
    civil::{Time, Weekday},
    tz::TimeZone,
};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::{
    AllowList, AmountField, ArgumentBounds, AskAbove, Destinations, Limit, Per, Policy,
    PolicyError, PolicyHost, PolicyHostBuilder, RulePolicy, TimeWindow, pattern::ToolPattern,
    receipts::Redaction,
};
use crate::json_file::{FileError, JsonFile, UniqueKeys};

/// The built-in policies and limits of a host as a JSON file.
///
/// ```json
/// {
///   "policies": [
///     {"id": "tools", "kind": "allow_list", "tools": ["send_money", "look_up_*"]},
///     {"id": "shape", "kind": "argument_bounds", "tools": "send_money",
///      "schema": {"required": ["to", "cents"]}},
///     {"id": "numbers", "kind": "destinations", "tools": "dial", "field": "to",
///      "allow": ["+49"], "deny": ["+49900"]},
///     {"id": "office", "kind": "time_window", "tools": "send_money", "zone": "Europe/Berlin",
///      "days": ["mon", "tue", "wed", "thu", "fri"], "from": "08:00", "to": "18:00"},
///     {"id": "large", "kind": "ask_above", "tools": "send_money",
///      "amount": {"field": "cents", "unit": "minor"}, "above": "10000"}
///   ],
///   "limits": [
///     {"id": "daily", "tools": "send_money", "per": ["caller"], "window": "1d", "calls": 20,
///      "amount": {"field": "cents", "unit": "minor"}, "max": "50000"}
///   ],
///   "receipts": {"durable": ["send_money"],
///                "redact": [{"tools": "send_money", "field": "/card/number"}]}
/// }
/// ```
///
/// * An `amount` is in minor units (`"unit": "minor"`), or in major units with so many decimals
///   (`"decimals": 2`); `"currency": {"field": "currency", "code": "EUR"}` may say which. `above` and
///   `max` are texts in the same unit.
/// * A `window` is a number and `s`, `m`, `h` or `d`. `per`: `tenant`, `caller`, `session`, `tool`.
/// * `kind: "rules"` has the `default` and `rules` of a [`RulePolicy`]; its `id` is `rules`.
/// * `kind: "cedar"` has `files`: policies in the language Cedar, beside this file (with the feature
///   `cedar`). They are checked against the tools: [`PolicyFile::for_tools`]. A file whose name ends in
///   `.cedar` is a policy file, too, whose policies together are called `cedar`.
/// * `zone`: `UTC`, a name of the time zone database, or a POSIX one.
///
/// A file that has `default` or `rules` at its top, as a [`RulePolicy`] does, is that one policy.
#[derive(Clone)]
pub struct PolicyFile {
    policies: Vec<Arc<dyn Policy>>,
    limits: Vec<Limit>,
    redactions: Vec<Redaction>,
    durable: Vec<String>,
    patterns: Vec<ToolPattern>,
    asks: bool,
    /// Not yet checked against the tools.
    #[cfg(feature = "cedar")]
    cedar: Vec<super::CedarPolicies>,
}

impl PolicyFile {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// Whatever is wrong with the file, with its line.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, FileError> {
        let path = path.as_ref();
        #[cfg(feature = "cedar")]
        if path.extension().is_some_and(|extension| extension == "cedar") {
            let cedar = super::CedarPolicies::new("cedar").file(path)?;
            let asks = cedar.asks();
            return Ok(Self { cedar: vec![cedar], asks, ..Self::empty() });
        }
        Self::from_json(&JsonFile::read(path)?)
    }

    /// Reads a text; `name` stands for the path in errors.
    ///
    /// # Errors
    ///
    /// Whatever is wrong with the text, with its line.
    pub fn parse(name: &str, text: &str) -> Result<Self, FileError> {
        Self::from_json(&JsonFile::new(name, text))
    }

    /// The same, with its policies in Cedar checked against these tools. Those without any stay as they
    /// are.
    ///
    /// # Errors
    ///
    /// What does not fit the tools, with its file and line.
    pub fn for_tools(self, tools: &[antiphon_types::ToolDefinition]) -> Result<Self, FileError> {
        #[cfg(feature = "cedar")]
        {
            let mut this = self;
            for cedar in std::mem::take(&mut this.cedar) {
                this.policies.push(Arc::new(cedar.for_tools(tools, &this.limits)?));
            }
            Ok(this)
        }
        #[cfg(not(feature = "cedar"))]
        {
            let _ = tools;
            Ok(self)
        }
    }

    /// Its limits.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// Whether it has a person decide over calls: they wait in the store of the conversation, which there
    /// has to be, and are refused without one.
    pub fn asks(&self) -> bool {
        self.asks
    }

    fn empty() -> Self {
        Self {
            policies: Vec::new(),
            limits: Vec::new(),
            redactions: Vec::new(),
            durable: Vec::new(),
            patterns: Vec::new(),
            asks: false,
            #[cfg(feature = "cedar")]
            cedar: Vec::new(),
        }
    }

    /// The host that the file describes, to which more can be added. The parts that say what receipts
    /// show count where there is a log: see [`PolicyFile::durable`].
    pub fn host(&self) -> PolicyHostBuilder {
        let mut host = PolicyHost::builder();
        for policy in &self.policies {
            host = host.policy(policy.clone());
        }
        for limit in &self.limits {
            host = host.limit(limit.clone());
        }
        for redaction in &self.redactions {
            host = host.redact(redaction.clone());
        }
        #[cfg(feature = "cedar")]
        if let Some(cedar) = self.cedar.first() {
            let reason = "policies in Cedar have to be checked against the tools first";
            host = host.problem(PolicyError::of(cedar.id(), reason));
        }
        host
    }

    /// What receipts do not show.
    pub fn redactions(&self) -> &[Redaction] {
        &self.redactions
    }

    /// The tools, by name or pattern, whose receipts are to be durable.
    pub fn durable(&self) -> impl Iterator<Item = &str> {
        self.durable.iter().map(String::as_str)
    }

    /// The names of its limits.
    pub fn limit_ids(&self) -> impl Iterator<Item = &str> {
        self.limits.iter().map(|limit| &**limit.id())
    }

    /// Patterns that fit none of these tools: most likely misspelt.
    pub fn unused_patterns<'a>(&self, tools: impl IntoIterator<Item = &'a str>) -> Vec<&str> {
        let tools: Vec<&str> = tools.into_iter().collect();
        let unused = self.patterns.iter().filter(|pattern| !tools.iter().any(|t| pattern.fits(t)));
        unused.map(ToolPattern::as_str).collect()
    }

    fn from_json(file: &JsonFile) -> Result<Self, FileError> {
        file.parse::<UniqueKeys>()?;
        let mut this = Self::empty();
        if file.parse::<Top<'_>>().is_ok_and(|top| top.is_rules()) {
            let rules = RulePolicy::from_json(file)?;
            this.patterns.extend(rules.patterns().cloned());
            this.asks = rules.asks();
            this.policies.push(Arc::new(rules));
            return Ok(this);
        }
        let document: Document<'_> = file.parse()?;
        let mut names = HashSet::new();
        let mut once = |piece: &RawValue, id: &str| match names.insert(id.to_owned()) {
            true => Ok(()),
            false => Err(file.error_at(piece, format!("the name {id:?} is given twice"))),
        };
        for piece in document.policies {
            if let Some(id) = this.cedar(file, piece)? {
                once(piece, &id)?;
                continue;
            }
            let policy = this.policy(file, piece)?;
            once(piece, policy.id())?;
            this.policies.push(policy);
        }
        for piece in document.limits {
            let entry: LimitEntry = file.parse_piece(piece)?;
            let limit = entry.limit().map_err(|error| file.error_at(piece, error.reason))?;
            once(piece, limit.id())?;
            this.note(&entry.tools);
            this.limits.push(limit);
        }
        let receipts = document.receipts;
        for piece in receipts.redact {
            let RedactEntry { tools, field } = file.parse_piece(piece)?;
            let redaction = Redaction::new(&tools, &field);
            this.redactions.push(redaction.map_err(|error| file.error_at(piece, error.reason))?);
            this.note(&tools);
        }
        for piece in receipts.durable {
            let tools: String = file.parse_piece(piece)?;
            ToolPattern::parse(&tools).map_err(|reason| file.error_at(piece, reason))?;
            this.note(&tools);
            this.durable.push(tools);
        }
        Ok(this)
    }

    /// Where the piece has policies in Cedar, their name.
    fn cedar(&mut self, file: &JsonFile, piece: &RawValue) -> Result<Option<String>, FileError> {
        let Kind { id, kind } = file.parse_piece(piece)?;
        if kind != "cedar" {
            return Ok(None);
        }
        let Some(id) = id.filter(|id| !id.trim().is_empty()) else {
            return Err(file.error_at(piece, "a policy needs an id"));
        };
        let CedarEntry { files, .. } = file.parse_piece(piece)?;
        if files.is_empty() {
            return Err(file.error_at(piece, "`files` names no file"));
        }
        #[cfg(feature = "cedar")]
        {
            let folder = Path::new(file.path()).parent().unwrap_or(Path::new(""));
            let mut cedar = super::CedarPolicies::new(&id);
            for name in files {
                cedar = cedar.file(folder.join(name))?;
            }
            self.asks |= cedar.asks();
            self.cedar.push(cedar);
            Ok(Some(id))
        }
        #[cfg(not(feature = "cedar"))]
        Err(file.error_at(piece, "this program was built without Cedar"))
    }

    fn policy(&mut self, file: &JsonFile, piece: &RawValue) -> Result<Arc<dyn Policy>, FileError> {
        let wrong = |error: PolicyError| file.error_at(piece, error.reason);
        let Kind { id, kind } = file.parse_piece(piece)?;
        if kind != "rules" && id.as_deref().unwrap_or_default().trim().is_empty() {
            return Err(file.error_at(piece, "a policy needs an id"));
        }
        let id = id.unwrap_or_default();
        Ok(match kind.as_str() {
            "allow_list" => {
                let AllowEntry { tools, .. } = file.parse_piece(piece)?;
                tools.iter().for_each(|tool| self.note(tool));
                let tools = tools.iter().map(String::as_str);
                Arc::new(AllowList::new(&id, tools).map_err(wrong)?)
            }
            "argument_bounds" => {
                let BoundsEntry { tools, schema, tell_model, .. } = file.parse_piece(piece)?;
                self.note(&tools);
                let bounds = ArgumentBounds::new(&id, &tools, &schema).map_err(wrong)?;
                Arc::new(if tell_model { bounds.tell_model() } else { bounds })
            }
            "destinations" => {
                let entry: DestinationsEntry = file.parse_piece(piece)?;
                self.note(&entry.tools);
                let mut numbers =
                    Destinations::new(&id, &entry.tools, &entry.field).map_err(wrong)?;
                for prefix in &entry.allow {
                    numbers = numbers.allow(prefix).map_err(wrong)?;
                }
                for prefix in &entry.deny {
                    numbers = numbers.deny(prefix).map_err(wrong)?;
                }
                Arc::new(numbers)
            }
            "time_window" => {
                let entry: WindowEntry = file.parse_piece(piece)?;
                self.note(&entry.tools);
                Arc::new(entry.window(&id).map_err(wrong)?)
            }
            "ask_above" => {
                let AskEntry { tools, amount, above, .. } = file.parse_piece(piece)?;
                self.note(&tools);
                self.asks = true;
                let field = amount.field().map_err(|reason| file.error_at(piece, reason))?;
                let above = field
                    .parse(&above)
                    .map_err(|wrong| file.error_at(piece, format!("`above`: {above:?} {wrong}")))?;
                Arc::new(AskAbove::new(&id, &tools, field, above).map_err(wrong)?)
            }
            "rules" => {
                let rules = RulePolicy::from_piece(file, piece)?;
                self.patterns.extend(rules.patterns().cloned());
                self.asks |= rules.asks();
                Arc::new(rules)
            }
            other => return Err(file.error_at(piece, format!("no kind of policy is {other:?}"))),
        })
    }

    fn note(&mut self, tools: &str) {
        self.patterns.extend(ToolPattern::parse(tools));
    }
}

impl std::fmt::Debug for PolicyFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let policies: Vec<_> = self.policies.iter().map(|policy| policy.id()).collect();
        f.debug_struct("PolicyFile")
            .field("policies", &policies)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// What tells the two kinds of files apart.
#[derive(Deserialize)]
struct Top<'a> {
    #[serde(borrow)]
    default: Option<&'a RawValue>,
    #[serde(borrow)]
    rules: Option<&'a RawValue>,
}

impl Top<'_> {
    fn is_rules(&self) -> bool {
        self.default.is_some() || self.rules.is_some()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document<'a> {
    #[serde(rename = "$schema", default)]
    _schema: Option<String>,
    #[serde(borrow)]
    policies: Vec<&'a RawValue>,
    #[serde(borrow, default)]
    limits: Vec<&'a RawValue>,
    #[serde(borrow, default)]
    receipts: Receipts<'a>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Receipts<'a> {
    #[serde(borrow, default)]
    durable: Vec<&'a RawValue>,
    #[serde(borrow, default)]
    redact: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct Kind {
    #[serde(default)]
    id: Option<String>,
    kind: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowEntry {
    #[serde(rename = "id")]
    _id: String,
    #[serde(rename = "kind")]
    _kind: String,
    tools: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CedarEntry {
    #[serde(rename = "id")]
    _id: String,
    #[serde(rename = "kind")]
    _kind: String,
    files: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BoundsEntry {
    #[serde(rename = "id")]
    _id: String,
    #[serde(rename = "kind")]
    _kind: String,
    tools: String,
    schema: Value,
    #[serde(default)]
    tell_model: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DestinationsEntry {
    #[serde(rename = "id")]
    _id: String,
    #[serde(rename = "kind")]
    _kind: String,
    tools: String,
    field: String,
    allow: Vec<String>,
    #[serde(default)]
    deny: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WindowEntry {
    #[serde(rename = "id")]
    _id: String,
    #[serde(rename = "kind")]
    _kind: String,
    tools: String,
    zone: String,
    #[serde(default)]
    days: Vec<Day>,
    from: String,
    to: String,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Day {
    Mon,
    Tue,
    Wed,
    Thu,
    Fri,
    Sat,
    Sun,
}

impl WindowEntry {
    fn window(&self, id: &str) -> Result<TimeWindow, PolicyError> {
        let zone = match self.zone.as_str() {
            "UTC" => Ok(TimeZone::UTC),
            name => TimeZone::get(name).or_else(|_| TimeZone::posix(name)),
        };
        let wrong =
            |what: &str, value: &str| PolicyError::of(id, format!("{value:?} is no {what}"));
        let zone = zone.map_err(|_| wrong("time zone that is known here", &self.zone))?;
        let time = |text: &str| match text {
            // The end of a day is the beginning of the next.
            "24:00" => Ok(Time::midnight()),
            text => text.parse::<Time>().map_err(|_| wrong("time such as \"08:00\"", text)),
        };
        let days = self.days.iter().map(|day| match day {
            Day::Mon => Weekday::Monday,
            Day::Tue => Weekday::Tuesday,
            Day::Wed => Weekday::Wednesday,
            Day::Thu => Weekday::Thursday,
            Day::Fri => Weekday::Friday,
            Day::Sat => Weekday::Saturday,
            Day::Sun => Weekday::Sunday,
        });
        let (from, to) = (time(&self.from)?, time(&self.to)?);
        Ok(TimeWindow::new(id, &self.tools, zone, from, to)?.on(days))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AskEntry {
    #[serde(rename = "id")]
    _id: String,
    #[serde(rename = "kind")]
    _kind: String,
    tools: String,
    amount: AmountEntry,
    above: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AmountEntry {
    field: String,
    #[serde(default)]
    unit: Option<String>,
    #[serde(default)]
    decimals: Option<u8>,
    #[serde(default)]
    currency: Option<CurrencyEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CurrencyEntry {
    field: String,
    code: String,
}

impl AmountEntry {
    fn field(&self) -> Result<AmountField, String> {
        let field = match (self.unit.as_deref(), self.decimals) {
            (Some("minor"), None) => AmountField::minor(&self.field),
            (None | Some("major"), Some(decimals @ 0..=18)) => {
                AmountField::major(&self.field, decimals)
            }
            _ => {
                return Err(
                    "an amount has \"unit\": \"minor\", or \"decimals\" from 0 to 18".to_owned()
                );
            }
        };
        Ok(match &self.currency {
            Some(currency) => field.in_currency(&currency.field, &currency.code),
            None => field,
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitEntry {
    id: String,
    tools: String,
    #[serde(default)]
    per: Vec<PerEntry>,
    window: String,
    #[serde(default)]
    calls: Option<u64>,
    #[serde(default)]
    amount: Option<AmountEntry>,
    #[serde(default)]
    max: Option<String>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PerEntry {
    Tenant,
    Caller,
    Session,
    Tool,
}

impl LimitEntry {
    fn limit(&self) -> Result<Limit, PolicyError> {
        let wrong = |reason: String| PolicyError::of(&self.id, reason);
        let window = duration(&self.window).ok_or_else(|| {
            wrong(format!("{:?} is no window such as \"90s\", \"5m\", \"1h\", \"1d\"", self.window))
        })?;
        if self.id.trim().is_empty() {
            return Err(wrong("a limit needs an id".to_owned()));
        }
        let mut limit = Limit::new(&self.id, &self.tools, window)?;
        for per in &self.per {
            limit = limit.per(match per {
                PerEntry::Tenant => Per::Tenant,
                PerEntry::Caller => Per::Caller,
                PerEntry::Session => Per::Session,
                PerEntry::Tool => Per::Tool,
            });
        }
        if let Some(calls) = self.calls {
            limit = limit.calls(calls);
        }
        match (&self.amount, &self.max) {
            (Some(amount), Some(max)) => {
                let field = amount.field().map_err(wrong)?;
                let max = field.parse(max).map_err(|why| wrong(format!("`max`: {max:?} {why}")))?;
                limit = limit.amount(field, max);
            }
            (None, None) if self.calls.is_some() => {}
            (None, None) => {
                return Err(wrong("a limit needs `calls`, or `amount` and `max`".into()));
            }
            _ => return Err(wrong("`amount` and `max` belong together".to_owned())),
        }
        Ok(limit)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RedactEntry {
    tools: String,
    field: String,
}

fn duration(text: &str) -> Option<Duration> {
    let unit = text.chars().last()?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 60 * 60,
        'd' => 24 * 60 * 60,
        _ => return None,
    };
    let count = text.strip_suffix(unit)?;
    if count.is_empty() || !count.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    count.parse::<u64>().ok()?.checked_mul(seconds).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"{
  "policies": [
    {"id": "tools", "kind": "allow_list", "tools": ["send_money", "look_up_*"]},
    {"id": "shape", "kind": "argument_bounds", "tools": "send_money",
     "schema": {"required": ["to", "cents"]}},
    {"id": "numbers", "kind": "destinations", "tools": "dial", "field": "to",
     "allow": ["+49"], "deny": ["+49900"]},
    {"id": "office", "kind": "time_window", "tools": "send_money",
     "zone": "CET-1CEST,M3.5.0,M10.5.0/3",
     "days": ["mon", "tue", "wed", "thu", "fri"], "from": "08:00", "to": "18:00"},
    {"id": "large", "kind": "ask_above", "tools": "send_money",
     "amount": {"field": "cents", "unit": "minor"}, "above": "10000"},
    {"kind": "rules", "default": "allow", "rules": [{"tool": "fly", "action": "deny"}]}
  ],
  "limits": [
    {"id": "daily", "tools": "send_money", "per": ["caller"], "window": "1d", "calls": 20,
     "amount": {"field": "cents", "unit": "minor"}, "max": "50000"}
  ],
  "receipts": {"durable": ["send_money"],
               "redact": [{"tools": "send_money", "field": "/card/number"}]}
}"#;

    #[test]
    fn a_whole_file_is_a_host() {
        let file = PolicyFile::parse("p.json", WHOLE).unwrap();
        assert!(file.host().build().is_ok());
        assert_eq!(file.durable().collect::<Vec<_>>(), ["send_money"]);
        assert_eq!(file.unused_patterns(["send_money", "look_up_x"]), ["dial", "fly"]);
        let rules = PolicyFile::parse("p", r#"{"default": "deny", "rules": []}"#).unwrap();
        assert!(rules.host().build().is_ok());
    }

    #[test]
    fn whatever_is_wrong_is_told_with_its_line() {
        let cases = [
            (r#""kind": "allow_list""#, r#""kind": "permit_list""#, 3, "permit_list"),
            (r#"["send_money", "look_up_*"]"#, r#"["send money"]"#, 3, "pattern"),
            (r#""id": "shape""#, r#""id": "tools""#, 4, "twice"),
            (r#""id": "shape", "#, "", 4, "needs an id"),
            (r#"{"required": ["to", "cents"]}"#, r#"{"required": 5}"#, 4, "Schema"),
            (r#""+49900""#, r#""49900""#, 6, "beginning of a number"),
            ("CET-1CEST,M3.5.0,M10.5.0/3", "Nowhere/Land", 8, "time zone"),
            (r#""from": "08:00""#, r#""from": "8 am""#, 8, "time such as"),
            (r#""days": ["mon""#, r#""days": ["monday""#, 10, "monday"),
            (r#""above": "10000""#, r#""above": "10 000""#, 11, "decimal"),
            (r#""above": "10000""#, r#""above": 10000"#, 12, "string"),
            (r#""window": "1d""#, r#""window": "1 day""#, 16, "window"),
            (r#""window": "1d""#, r#""window": "0s""#, 16, "1 ms"),
            (r#", "max": "50000""#, "", 16, "belong together"),
            (r#""per": ["caller"]"#, r#""per": ["person"]"#, 16, "person"),
            (r#""durable": ["send_money"]"#, r#""durable": ["?"]"#, 19, "pattern"),
            (r#""default": "allow", "rules""#, r#""rules""#, 13, "default"),
            (r#""limits""#, r#""limit""#, 15, "limit"),
        ];
        for (from, to, line, reason) in cases {
            assert!(WHOLE.contains(from), "{from}");
            let error = PolicyFile::parse("p.json", &WHOLE.replacen(from, to, 1)).unwrap_err();
            assert_eq!(error.line, Some(line), "{to}: {error}");
            assert!(error.to_string().contains(reason), "{to}: {error}");
        }
    }

    #[test]
    fn durations_are_whole() {
        assert_eq!(duration("90s"), Some(Duration::from_secs(90)));
        assert_eq!(duration("2h"), Some(Duration::from_secs(7_200)));
        for text in ["", "s", "1", "-1s", "1.5h", "1w", " 1s", "99999999999999999999s", "1ä"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }
}
