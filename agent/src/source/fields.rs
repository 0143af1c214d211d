//! THE table of a pod's fields: acted on, without effect on a node, or refused by name.
//!
//! Every field of a v1.37 Pod has one verdict; a test walks the API's types and finds what is
//! missing. `check` walks a manifest's value along the table, so that nothing is ignored in
//! silence. `docs/FIELDS.md` is written from here (`SKEP_BLESS=1 cargo test -p agent fields`).

mod table;

use std::fmt::Write as _;

use serde_json::Value;

use super::problem::Problem;

/// What becomes of a field.
#[derive(Clone, Copy, Debug)]
pub(super) enum Verdict {
    /// The node does what it says.
    ActedOn,
    /// An object, or a list of such, whose fields are decided one by one.
    Parts(&'static Kind),
    /// Accepted; on a node it has no effect, and why.
    NoEffect(&'static str),
    /// These values only; others ask for something that is not built yet.
    Only(&'static [&'static str], &'static str),
    /// Refused: what it asks for is not built yet.
    NotBuilt(&'static str),
    /// Refused: a static pod lives without an API server, so it can't use its objects (SRC-11).
    ApiReference(&'static str),
    /// Refused: never allowed in a manifest, and why.
    Forbidden(&'static str),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub name: &'static str,
    pub verdict: Verdict,
}

/// A type of the API.
#[derive(Debug)]
pub(super) struct Kind {
    /// As the API names it.
    pub name: &'static str,
    pub fields: &'static [Field],
    /// For a map with keys of its own (resource names): the verdict on any other key.
    pub others: Option<Verdict>,
}

/// Checks a decoded manifest. Unknown fields are not its business: decoding names them.
pub(super) fn check(pod: &Value) -> Vec<Problem> {
    let mut problems = Vec::new();
    check_parts(pod, &table::POD, "", &mut problems);
    check_combinations(pod, &mut problems);
    problems
}

fn check_parts(value: &Value, kind: &Kind, path: &str, problems: &mut Vec<Problem>) {
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                check_parts(item, kind, &format!("{path}[{index}]"), problems);
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                let known = kind.fields.iter().find(|field| field.name == name);
                let verdict = known.map(|field| field.verdict).or(kind.others);
                if let Some(verdict) = verdict
                    && !is_unset(value)
                {
                    let path = match (path, kind.others) {
                        ("", _) => name.clone(),
                        (path, Some(_)) => format!("{path}[{name}]"),
                        (path, None) => format!("{path}.{name}"),
                    };
                    check_one(value, verdict, &path, problems);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn check_one(value: &Value, verdict: Verdict, path: &str, problems: &mut Vec<Problem>) {
    let message = match verdict {
        Verdict::ActedOn | Verdict::NoEffect(_) => return,
        Verdict::Parts(kind) => return check_parts(value, kind, path, problems),
        Verdict::Only(accepted, what) => {
            let text = match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            if accepted.contains(&text.as_str()) {
                return;
            }
            let accepted: Vec<String> = accepted.iter().map(|v| format!("{v:?}")).collect();
            format!(
                "Unsupported value: {value}: {what}: not built yet; supported values: {}",
                accepted.join(", ")
            )
        }
        Verdict::NotBuilt(what) => format!("Forbidden: {what}: not built yet"),
        Verdict::ApiReference(what) => {
            format!("Forbidden: static pods may not reference {what}")
        }
        Verdict::Forbidden(why) => format!("Forbidden: {why}"),
    };
    problems.push(Problem::new(path, message));
}

/// What the API treats as not given.
fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => false,
    }
}

/// What depends on more than one field.
fn check_combinations(pod: &Value, problems: &mut Vec<Problem>) {
    let spec = &pod["spec"];
    let list = |name: &str| spec[name].as_array().map(Vec::as_slice).unwrap_or_default();
    for (index, container) in list("containers").iter().enumerate() {
        if !is_unset(&container["restartPolicy"]) {
            problems.push(Problem::forbidden(
                format!("spec.containers[{index}].restartPolicy"),
                "restart policies of regular containers: not built yet",
            ));
        }
    }
    for (index, volume) in list("volumes").iter().enumerate() {
        let path = format!("spec.volumes[{index}]");
        let empty_dir = &volume["emptyDir"];
        if !is_unset(&empty_dir["sizeLimit"]) && empty_dir["medium"] != "Memory" {
            problems.push(Problem::forbidden(
                format!("{path}.emptyDir.sizeLimit"),
                "size limits on disk: not built yet (a limit works with medium Memory)",
            ));
        }
        // A projection of nothing that is refused is refused for itself.
        if !is_unset(&volume["projected"])
            && !problems
                .iter()
                .any(|p| p.field.starts_with(&format!("{path}.projected")))
        {
            problems.push(Problem::forbidden(
                format!("{path}.projected"),
                "projected volumes: not built yet",
            ));
        }
    }
    if let Some(annotations) = pod["metadata"]["annotations"].as_object() {
        for name in annotations.keys() {
            let why = if name == "kubernetes.io/config.mirror" {
                "set by the node agent only"
            } else if name.starts_with("container.apparmor.security.beta.kubernetes.io/") {
                "AppArmor profiles: not built yet"
            } else {
                continue;
            };
            problems.push(Problem::forbidden(
                format!("metadata.annotations[{name}]"),
                why,
            ));
        }
    }
}

/// The table as a page of Markdown: `docs/FIELDS.md`.
pub fn page() -> String {
    let mut page = String::from(PREFACE);
    let mut kinds: Vec<&Kind> = vec![&table::POD];
    let mut next = 0;
    while let Some(kind) = kinds.get(next).copied() {
        next += 1;
        let _ = write!(
            page,
            "\n## {}\n\n| field | verdict | |\n| --- | --- | --- |\n",
            kind.name
        );
        let others = kind.others.map(|verdict| ("any other", verdict));
        let fields = kind.fields.iter().map(|field| (field.name, field.verdict));
        for (name, verdict) in fields.chain(others) {
            let (verdict, note) = described(verdict);
            let _ = writeln!(page, "| `{name}` | {verdict} | {note} |");
        }
        for field in kind.fields {
            if let Verdict::Parts(part) = field.verdict
                && !kinds.iter().any(|known| known.name == part.name)
            {
                kinds.push(part);
            }
        }
    }
    page
}

const PREFACE: &str = "# What becomes of each field of a pod

Written from `agent/src/source/fields/table.rs`; a test keeps it true.

Every field of a Kubernetes 1.37 Pod is one of these:

- **acted on**: the node does what it says;
- **no effect**: accepted, and nothing on a node depends on it;
- **refused**: the manifest is refused with a message that names the field, because what it asks
  for is not built yet, or because a static pod can't have it.

Nothing is ignored in silence. A field that the API does not know is refused by `skep up` and
`skep check`; `skep run` drops it with a warning, as a kubelet does without one.
A field that is null, an empty string or an empty list counts as not given.
";

fn described(verdict: Verdict) -> (&'static str, String) {
    match verdict {
        Verdict::ActedOn => ("acted on", String::new()),
        Verdict::Parts(kind) => ("by part", format!("see {}", kind.name)),
        Verdict::NoEffect(why) => ("no effect", why.to_owned()),
        Verdict::Only(accepted, what) => {
            let accepted: Vec<String> = accepted
                .iter()
                .filter(|value| !value.is_empty())
                .map(|value| format!("`{value}`"))
                .collect();
            (
                "acted on in part",
                format!("only {}; {what}: not built yet", accepted.join(", ")),
            )
        }
        Verdict::NotBuilt(what) => ("refused", format!("{what}: not built yet")),
        Verdict::ApiReference(what) => ("refused", format!("static pods may not reference {what}")),
        Verdict::Forbidden(why) => ("refused", why.to_owned()),
    }
}

#[cfg(test)]
mod tests;
