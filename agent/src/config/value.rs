//! One setting's value, and how each kind of setting is read from a flag and from a file.
//!
//! Flags follow pflag and the kubelet's own flag types; the file follows Go's JSON decoder (a
//! number is no string, a duration is a string). Every error says what was expected.

use std::{collections::BTreeMap, fmt, net::IpAddr};

use serde_json::Value as Json;

use crate::types::duration::GoDuration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Kind {
    Bool,
    Int32,
    Int64,
    Float,
    #[strum(serialize = "string")]
    Text,
    /// A text that names a file; relative to the configuration file that it stands in.
    Path,
    Ip,
    Duration,
    /// A duration that a file may also give as a number of nanoseconds.
    #[strum(serialize = "duration")]
    DurationOrNanos,
    /// An amount that a file may also give as a number.
    Quantity,
    /// `a,b`; repeated flags add up.
    List,
    /// `key=value,key=value`; repeated flags add up.
    #[strum(serialize = "key=value,…")]
    Pairs,
    /// One `key=value` a flag: the value may hold commas.
    #[strum(serialize = "key=value")]
    Pair,
    /// `signal<quantity,…`.
    #[strum(serialize = "signal<value,…")]
    Thresholds,
    /// `Name=true,…`.
    #[strum(serialize = "Name=bool,…")]
    Gates,
    /// `name:value,…`.
    #[strum(serialize = "name:value,…")]
    Headers,
    /// Something whose subject is not built: kept as it was given.
    #[strum(serialize = "structure")]
    Raw,
    /// `--version`: a bool, or `raw`.
    Version,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    Duration(GoDuration),
    List(Vec<String>),
    Pairs(BTreeMap<String, String>),
    Gates(BTreeMap<String, bool>),
    Headers(BTreeMap<String, Vec<String>>),
    Raw(Json),
}

impl Kind {
    /// The value that a flag stands for when it is given without one.
    pub(super) fn implied(self) -> Option<&'static str> {
        matches!(self, Self::Bool | Self::Version).then_some("true")
    }

    /// Reads a flag's text. `before` is what earlier uses of the same flag said. The error is
    /// what was expected.
    pub(super) fn parse(self, text: &str, before: Option<Value>) -> Result<Value, String> {
        Ok(match self {
            Self::Bool => {
                Value::Bool(parse_bool(text).ok_or_else(|| "expected true or false".to_owned())?)
            }
            Self::Int32 | Self::Int64 => {
                Value::Int(self.in_range(
                    parse_int(text).ok_or_else(|| "expected a whole number".to_owned())?,
                )?)
            }
            Self::Float => Value::Float(
                text.parse::<f64>()
                    .map_err(|_error| "expected a number".to_owned())?,
            ),
            Self::Text | Self::Path | Self::Quantity | Self::Version => {
                Value::Text(text.to_owned())
            }
            Self::Ip => Value::Text(parse_ip(text)?),
            Self::Duration | Self::DurationOrNanos => Value::Duration(parse_duration(text)?),
            Self::List => {
                let mut list = match before {
                    Some(Value::List(list)) => list,
                    _ => Vec::new(),
                };
                list.extend(
                    text.split(',')
                        .filter(|_| !text.is_empty())
                        .map(str::to_owned),
                );
                Value::List(list)
            }
            Self::Pairs => Value::Pairs(pairs(text, '=', before)?),
            Self::Thresholds => Value::Pairs(pairs(text, '<', before)?),
            Self::Pair => {
                let mut map = match before {
                    Some(Value::Pairs(map)) => map,
                    _ => BTreeMap::new(),
                };
                let (key, value) = split_pair(text, '=')?;
                map.insert(key, value);
                Value::Pairs(map)
            }
            Self::Gates => {
                let mut map = match before {
                    Some(Value::Gates(map)) => map,
                    _ => BTreeMap::new(),
                };
                for pair in text.split(',').filter(|pair| !pair.is_empty()) {
                    let (name, value) = split_pair(pair, '=').map_err(|_error| {
                        format!("expected Name=true or Name=false, not {pair:?}")
                    })?;
                    let value = parse_bool(&value).ok_or_else(|| {
                        format!("expected true or false for {name}, not {value:?}")
                    })?;
                    map.insert(name, value);
                }
                Value::Gates(map)
            }
            Self::Headers => {
                let mut map = match before {
                    Some(Value::Headers(map)) => map,
                    _ => BTreeMap::new(),
                };
                for pair in text.split(',').filter(|pair| !pair.is_empty()) {
                    // The text may be a secret: it is not repeated.
                    let (name, value) =
                        split_pair(pair, ':').map_err(|_error| "expected name:value".to_owned())?;
                    map.entry(name).or_insert_with(Vec::new).push(value);
                }
                Value::Headers(map)
            }
            Self::Raw => Value::Raw(Json::String(text.to_owned())),
        })
    }

    /// Reads a field of the file. The error is what was expected and what stands there.
    pub(super) fn read(self, json: &Json) -> Result<Value, String> {
        let unexpected = |expected: &str| format!("expected {expected}, found {}", found(json));
        Ok(match self {
            Self::Bool => Value::Bool(json.as_bool().ok_or_else(|| unexpected("true or false"))?),
            Self::Int32 | Self::Int64 => Value::Int(
                self.in_range(json.as_i64().ok_or_else(|| unexpected("a whole number"))?)
                    .map_err(|expected| format!("{expected}, found {}", found(json)))?,
            ),
            Self::Float => Value::Float(json.as_f64().ok_or_else(|| unexpected("a number"))?),
            Self::Quantity if json.is_number() => Value::Text(json.to_string()),
            Self::Text | Self::Path | Self::Quantity | Self::Version => Value::Text(
                json.as_str()
                    .ok_or_else(|| unexpected("a string"))?
                    .to_owned(),
            ),
            Self::Ip => Value::Text(match json.as_str() {
                // An empty address is no address: the default holds.
                Some("") => String::new(),
                Some(text) => {
                    parse_ip(text).map_err(|expected| format!("{expected}, found {text:?}"))?
                }
                None => return Err(unexpected("an IP address")),
            }),
            Self::DurationOrNanos if json.is_i64() => {
                Value::Duration(GoDuration(json.as_i64().unwrap_or_default()))
            }
            Self::Duration | Self::DurationOrNanos => {
                let text = json
                    .as_str()
                    .ok_or_else(|| unexpected("a duration like \"1m30s\""))?;
                Value::Duration(
                    parse_duration(text)
                        .map_err(|expected| format!("{expected}, found {text:?}"))?,
                )
            }
            Self::List => Value::List(read_list(json)?),
            Self::Pairs | Self::Pair | Self::Thresholds => {
                Value::Pairs(read_map(json, "a string", |value| {
                    value.as_str().map(str::to_owned)
                })?)
            }
            Self::Gates => Value::Gates(read_map(json, "true or false", Json::as_bool)?),
            Self::Headers => {
                let map = json
                    .as_object()
                    .ok_or_else(|| unexpected("a map of lists of strings"))?;
                let mut headers = BTreeMap::new();
                for (name, values) in map {
                    let values =
                        read_list(values).map_err(|error| format!("key {name:?}: {error}"))?;
                    headers.insert(name.clone(), values);
                }
                Value::Headers(headers)
            }
            Self::Raw => Value::Raw(json.clone()),
        })
    }

    fn in_range(self, number: i64) -> Result<i64, String> {
        if self == Self::Int32 && i32::try_from(number).is_err() {
            return Err("expected a whole number of 32 bits".to_owned());
        }
        Ok(number)
    }
}

impl Value {
    /// What Go calls the zero value: nothing was said.
    pub(super) fn is_zero(&self) -> bool {
        match self {
            Self::Bool(value) => !value,
            Self::Int(value) => *value == 0,
            Self::Float(value) => *value == 0.0,
            Self::Text(text) => text.is_empty(),
            Self::Duration(duration) => duration.0 == 0,
            // An empty list or map was said; only null says nothing.
            Self::List(_) | Self::Pairs(_) | Self::Gates(_) | Self::Headers(_) => false,
            Self::Raw(json) => {
                json.is_null()
                    || json.as_array().is_some_and(Vec::is_empty)
                    || json.as_object().is_some_and(serde_json::Map::is_empty)
                    || json.as_str().is_some_and(str::is_empty)
            }
        }
    }
}

/// As a flag would say it. Header values may be secret and are masked.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value}"),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Duration(duration) => write!(f, "{duration}"),
            Self::List(list) => write!(f, "[{}]", list.join(",")),
            Self::Pairs(map) => f.write_str(&join(map.iter().map(|(k, v)| format!("{k}={v}")))),
            Self::Gates(map) => f.write_str(&join(map.iter().map(|(k, v)| format!("{k}={v}")))),
            Self::Headers(map) => f.write_str(&join(map.keys().map(|k| format!("{k}:<masked>")))),
            Self::Raw(json) => write!(f, "{json}"),
        }
    }
}

fn join(parts: impl Iterator<Item = String>) -> String {
    let text = parts.collect::<Vec<_>>().join(",");
    if text.is_empty() {
        "none".to_owned()
    } else {
        text
    }
}

fn found(json: &Json) -> String {
    match json {
        Json::Null => "nothing".to_owned(),
        Json::Bool(value) => value.to_string(),
        Json::Number(number) => number.to_string(),
        Json::String(text) => {
            let mut short: String = text.chars().take(40).collect();
            if short.len() < text.len() {
                short.push('…');
            }
            format!("{short:?}")
        }
        Json::Array(_) => "a list".to_owned(),
        Json::Object(_) => "a map".to_owned(),
    }
}

fn read_list(json: &Json) -> Result<Vec<String>, String> {
    json.as_array()
        .ok_or_else(|| format!("expected a list of strings, found {}", found(json)))?
        .iter()
        .enumerate()
        .map(|(index, item)| {
            item.as_str()
                .map(str::to_owned)
                .ok_or_else(|| format!("entry {index}: expected a string, found {}", found(item)))
        })
        .collect()
}

fn read_map<T>(
    json: &Json,
    expected: &str,
    read: impl Fn(&Json) -> Option<T>,
) -> Result<BTreeMap<String, T>, String> {
    json.as_object()
        .ok_or_else(|| format!("expected a map, found {}", found(json)))?
        .iter()
        .map(|(key, value)| {
            let value = read(value).ok_or_else(|| {
                format!("key {key:?}: expected {expected}, found {}", found(value))
            })?;
            Ok((key.clone(), value))
        })
        .collect()
}

/// As `strconv.ParseBool`.
pub(super) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// As `strconv.ParseInt` with base 0: `0x1f`, `0o17`, `017`, `0b11`, `1_000`.
fn parse_int(text: &str) -> Option<i64> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => (-1, &text[1..]),
        b'+' => (1, &text[1..]),
        _ => (1, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, body) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    let body = body.replace('_', "");
    if !body.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return None;
    }
    let magnitude = i128::from_str_radix(&body, radix).ok()?;
    i64::try_from(sign * magnitude).ok()
}

fn parse_ip(text: &str) -> Result<String, String> {
    match text.trim().parse::<IpAddr>() {
        Ok(ip) => Ok(ip.to_string()),
        Err(_) => Err("expected an IP address like 127.0.0.1 or ::".to_owned()),
    }
}

fn parse_duration(text: &str) -> Result<GoDuration, String> {
    GoDuration::parse(text).ok_or_else(|| "expected a duration like 20s, 1m30s or 300ms".to_owned())
}

fn pairs(
    text: &str,
    separator: char,
    before: Option<Value>,
) -> Result<BTreeMap<String, String>, String> {
    let mut map = match before {
        Some(Value::Pairs(map)) => map,
        _ => BTreeMap::new(),
    };
    for pair in text.split(',').filter(|pair| !pair.is_empty()) {
        let (key, value) = split_pair(pair, separator)?;
        map.insert(key, value);
    }
    Ok(map)
}

fn split_pair(pair: &str, separator: char) -> Result<(String, String), String> {
    let (key, value) = pair
        .split_once(separator)
        .ok_or_else(|| format!("expected key{separator}value, not {pair:?}"))?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("110", Some(110))]
    #[case("-1", Some(-1))]
    #[case("0x10", Some(16))]
    #[case("010", Some(8))]
    #[case("1_000", Some(1000))]
    #[case("", None)]
    #[case("-", None)]
    #[case("--1", None)]
    #[case("1.0", None)]
    #[case("ten", None)]
    fn whole_numbers_are_read_as_go_reads_them(#[case] text: &str, #[case] number: Option<i64>) {
        assert_eq!(parse_int(text), number);
    }

    #[test]
    fn a_repeated_map_flag_adds_up_and_a_key_given_twice_takes_the_last_value() {
        let first = Kind::Pairs.parse("cpu=1,memory=1Gi", None).expect("pairs");
        let both = Kind::Pairs.parse("cpu=2", Some(first)).expect("pairs");
        assert_eq!(both.to_string(), "cpu=2,memory=1Gi");
    }

    #[test]
    fn header_values_are_never_shown() {
        let headers = Kind::Headers
            .parse("token:secret,a:b", None)
            .expect("headers");
        assert_eq!(headers.to_string(), "a:<masked>,token:<masked>");
    }
}
