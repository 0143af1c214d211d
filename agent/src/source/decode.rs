//! From the bytes of a manifest to a Pod object: YAML or JSON, one document, kind and types checked.
//!
//! Everything goes through one JSON value, as in the API server: YAML's scalars get their types
//! there (YAML 1.1, as upstream reads it: `yes` is a boolean, `0644` is octal), and a number where
//! the API has a string is refused. Pure.

use k8s_openapi::api::core::v1::Pod as PodObject;
use serde_json::Value;

use super::problem::Problem;
use crate::config::Strictness;

/// Longest manifest, in bytes; upstream's (SRC-03).
pub(super) const MAX_BYTES: u64 = 10 << 20;

/// The first document of a manifest.
#[derive(Debug)]
pub(super) struct Document {
    pub value: Value,
    pub warnings: Vec<Problem>,
}

/// What `decode_pod` makes of one value.
#[derive(Debug)]
pub(super) struct Decoded {
    pub object: PodObject,
    pub warnings: Vec<Problem>,
}

/// Reads the text. Further documents and keys that stand twice are refused or warned about.
pub(super) fn read_document(bytes: &[u8], strictness: Strictness) -> Result<Document, Problem> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        Problem::of_file(format!(
            "is not UTF-8 text (byte {}): expected a Pod in YAML or JSON",
            error.valid_up_to()
        ))
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim_start().starts_with('{')
        && let Ok(value) = serde_json::from_str(text)
    {
        return Ok(Document {
            value,
            warnings: Vec::new(),
        });
    }
    let mut warnings = Vec::new();
    let value = match first_and_rest(text, Keys::Unique) {
        Err(serde_saphyr::Error::DuplicateMappingKey { key, location, .. }) => {
            let key = key.unwrap_or_default();
            let twice = format!(
                "the key {key:?} stands twice in one mapping (line {})",
                location.line()
            );
            if strictness == Strictness::Refuse {
                return Err(Problem::of_file(format!("{twice}: expected each key once")));
            }
            warnings.push(Problem::of_file(format!("{twice}: its last value is used")));
            first_and_rest(text, Keys::LastWins).map_err(syntax)?
        }
        other => other.map_err(syntax)?,
    };
    let Some((value, has_more)) = value else {
        return Err(Problem::of_file("is empty: expected one Pod"));
    };
    if has_more {
        let problem = Problem::of_file(
            "holds more than one document: expected one Pod (what follows the first \"---\" is not read)",
        );
        match strictness {
            Strictness::Refuse => return Err(problem),
            Strictness::Warn => warnings.push(problem),
        }
    }
    Ok(Document { value, warnings })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keys {
    Unique,
    LastWins,
}

/// The first document, and whether more follows it. None where there is no document.
fn first_and_rest(text: &str, keys: Keys) -> Result<Option<(Value, bool)>, serde_saphyr::Error> {
    let mut options = serde_saphyr::options! {
        legacy_octal_numbers: true,
        strict_booleans: false,
        with_snippet: false,
    };
    // A manifest is small: what needs more than this is an attack ("billion laughs").
    options.alias_limits.max_total_replayed_events = 100_000;
    if keys == Keys::LastWins {
        options.duplicate_keys = serde_saphyr::options::DuplicateKeyPolicy::LastWins;
    }
    let mut reader = text.as_bytes();
    let mut documents = serde_saphyr::read_with_options::<_, Value>(&mut reader, options);
    match documents.next() {
        None => Ok(None),
        Some(Err(error)) => Err(error),
        Some(Ok(value)) => Ok(Some((value, documents.next().is_some()))),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the form that map_err takes")]
fn syntax(error: serde_saphyr::Error) -> Problem {
    let text = error.to_string();
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    Problem::of_file(format!("is neither YAML nor JSON: {line}"))
}

/// `apiVersion` and `kind` of a value; an error where it is no object or has none.
pub(super) fn kind_of(value: &Value) -> Result<(&str, &str), Problem> {
    let Value::Object(fields) = value else {
        return Err(Problem::of_file(format!(
            "is {}: expected a Pod object with apiVersion, kind, metadata and spec",
            described(value)
        )));
    };
    let text = |name: &str| match fields.get(name) {
        None | Some(Value::Null) => Err(Problem::required(
            name,
            "expected a Pod (apiVersion v1, kind Pod)",
        )),
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(other) => Err(Problem::invalid(name, other, "expected a string")),
    };
    Ok((text("apiVersion")?, text("kind")?))
}

/// One Pod. Types are checked as the API does; unknown fields are refused or warned about.
pub(super) fn decode_pod(
    mut value: Value,
    strictness: Strictness,
) -> Result<(Value, Decoded), Vec<Problem>> {
    let (version, kind) = kind_of(&value).map_err(|problem| vec![problem])?;
    if kind != "Pod" {
        return Err(vec![Problem::new(
            "kind",
            format!(
                "Unsupported value: {kind:?}: a manifest holds one Pod (apiVersion v1, kind Pod)"
            ),
        )]);
    }
    if version != "v1" {
        return Err(vec![Problem::unsupported("apiVersion", version, &["v1"])]);
    }
    write_quantities(&mut value);
    let mut unknown = Vec::new();
    let mut note = |path: serde_ignored::Path<'_>| unknown.push(written(&path));
    let decoded: Result<PodObject, _> =
        serde_path_to_error::deserialize(serde_ignored::Deserializer::new(&value, &mut note));
    let object = decoded.map_err(|error| {
        let path = error.path().to_string();
        let path = if path == "." { String::new() } else { path };
        vec![Problem::new(
            path,
            in_plain_words(&error.inner().to_string()),
        )]
    })?;
    let warnings: Vec<Problem> = unknown
        .into_iter()
        .map(|path| Problem::new(path, "unknown field"))
        .collect();
    if strictness == Strictness::Refuse && !warnings.is_empty() {
        return Err(warnings);
    }
    Ok((value, Decoded { object, warnings }))
}

/// The reader's words for types that only a programmer knows, as anyone would say them.
fn in_plain_words(message: &str) -> String {
    message
        .replace("expected i64", "expected a whole number")
        .replace("expected i32", "expected a whole number")
        .replace("expected a sequence", "expected a list")
}

fn described(value: &Value) -> &'static str {
    match value {
        Value::Null => "empty",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "plain text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// A path as the API writes it: `spec.containers[0].image`.
fn written(path: &serde_ignored::Path<'_>) -> String {
    use serde_ignored::Path;
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, index } => format!("{}[{index}]", written(parent)),
        Path::Map { parent, key } => {
            let parent = written(parent);
            if parent.is_empty() {
                key.clone()
            } else {
                format!("{parent}.{key}")
            }
        }
        Path::Some { parent }
        | Path::NewtypeStruct { parent }
        | Path::NewtypeVariant { parent } => written(parent),
    }
}

/// Quantities may be numbers (`cpu: 1`), which the API takes; here they become text.
fn write_quantities(pod: &mut Value) {
    fn write(value: &mut Value) {
        if let Value::Number(number) = value {
            *value = Value::String(number.to_string());
        }
    }
    fn write_lists(resources: &mut Value) {
        for list in ["limits", "requests"] {
            if let Some(Value::Object(list)) = resources.get_mut(list) {
                list.values_mut().for_each(write);
            }
        }
    }
    let Some(spec) = pod.get_mut("spec") else {
        return;
    };
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        let Some(Value::Array(containers)) = spec.get_mut(list) else {
            continue;
        };
        for container in containers {
            if let Some(resources) = container.get_mut("resources") {
                write_lists(resources);
            }
            let Some(Value::Array(env)) = container.get_mut("env") else {
                continue;
            };
            for variable in env {
                if let Some(divisor) = variable.pointer_mut("/valueFrom/resourceFieldRef/divisor") {
                    write(divisor);
                }
            }
        }
    }
    if let Some(Value::Array(volumes)) = spec.get_mut("volumes") {
        for volume in volumes {
            if let Some(limit) = volume.pointer_mut("/emptyDir/sizeLimit") {
                write(limit);
            }
        }
    }
    if let Some(resources) = spec.get_mut("resources") {
        write_lists(resources);
    }
    if let Some(Value::Object(overhead)) = spec.get_mut("overhead") {
        overhead.values_mut().for_each(write);
    }
}
