//! Which pod a POD argument means. Pure.

use crate::types::id::PodKey;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    #[error("no pod {argument:?}: nothing runs here")]
    NoPods { argument: String },
    #[error("no pod {argument:?}{}", suggestion(near))]
    Unknown { argument: String, near: Vec<PodKey> },
    #[error(
        "{argument:?} may be any of {}: name the one that is meant",
        listed(candidates)
    )]
    Ambiguous {
        argument: String,
        candidates: Vec<PodKey>,
    },
}

fn suggestion(near: &[PodKey]) -> String {
    match near {
        [] => "; `skep pods` lists them all".to_owned(),
        near => format!("; there is {}", listed(near)),
    }
}

fn listed(keys: &[PodKey]) -> String {
    let names: Vec<String> = keys.iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// How many names an error lists.
const NEAR: usize = 5;

/// `argument` is a name or namespace/name. A static pod may be named without the `-<node>` that its
/// name got; a full name goes before such a short one.
pub(super) fn resolve<'a>(
    argument: &str,
    pods: &'a [PodKey],
    node: &str,
) -> Result<&'a PodKey, Error> {
    let (namespace, name) = match argument.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, argument),
    };
    let in_namespace = |pod: &&PodKey| namespace.is_none_or(|wanted| &*pod.namespace == wanted);
    let short = |pod: &PodKey| {
        pod.name
            .strip_suffix(node)?
            .strip_suffix('-')
            .map(str::to_owned)
    };
    let full: Vec<&PodKey> = pods
        .iter()
        .filter(in_namespace)
        .filter(|pod| &*pod.name == name)
        .collect();
    let found = if full.is_empty() {
        pods.iter()
            .filter(in_namespace)
            .filter(|pod| short(pod).as_deref() == Some(name))
            .collect()
    } else {
        full
    };
    let argument = argument.to_owned();
    match found.as_slice() {
        [one] => Ok(one),
        [] if pods.is_empty() => Err(Error::NoPods { argument }),
        [] => {
            let near = near(name, pods, short);
            Err(Error::Unknown { argument, near })
        }
        several => Err(Error::Ambiguous {
            argument,
            candidates: several.iter().copied().cloned().collect(),
        }),
    }
}

/// The names that are most like it, or hold it.
fn near(name: &str, pods: &[PodKey], short: impl Fn(&PodKey) -> Option<String>) -> Vec<PodKey> {
    let mut scored: Vec<(usize, &PodKey)> = pods
        .iter()
        .filter_map(|pod| {
            let distance = [Some(pod.name.to_string()), short(pod)]
                .into_iter()
                .flatten()
                .map(|known| strsim::damerau_levenshtein(name, &known))
                .min()?;
            let is_near =
                distance <= 1 + name.len() / 3 || (!name.is_empty() && pod.name.contains(name));
            is_near.then_some((distance, pod))
        })
        .collect();
    scored.sort();
    scored
        .into_iter()
        .take(NEAR)
        .map(|(_, pod)| pod.clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn pods() -> Vec<PodKey> {
        vec![
            PodKey::new("default", "web-node1"),
            PodKey::new("kube-system", "web-node1"),
            PodKey::new("default", "db-node1"),
            PodKey::new("default", "db"),
            PodKey::new("default", "memory-hog-node1"),
        ]
    }

    #[rstest]
    #[case("db-node1", "default/db-node1")]
    #[case::a_full_name_goes_before_a_short_one("db", "default/db")]
    #[case("memory-hog", "default/memory-hog-node1")]
    #[case("kube-system/web", "kube-system/web-node1")]
    #[case("default/web-node1", "default/web-node1")]
    fn finds_the_pod(#[case] argument: &str, #[case] expected: &str) {
        let pods = pods();
        let found = resolve(argument, &pods, "node1").unwrap();
        assert_eq!(found.to_string(), expected);
    }

    #[rstest]
    #[case("web", r#""web" may be any of default/web-node1, kube-system/web-node1: name the one that is meant"#)]
    #[case(
        "memory-hgo",
        r#"no pod "memory-hgo"; there is default/memory-hog-node1"#
    )]
    #[case("hog", r#"no pod "hog"; there is default/memory-hog-node1"#)]
    #[case(
        "prod/db",
        r#"no pod "prod/db"; there is default/db, default/db-node1"#
    )]
    #[case("zzzzzzzzzzz", r#"no pod "zzzzzzzzzzz"; `skep pods` lists them all"#)]
    fn says_what_is_there_instead(#[case] argument: &str, #[case] expected: &str) {
        let error = resolve(argument, &pods(), "node1").unwrap_err();
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn an_empty_node_has_no_candidates() {
        let error = resolve("web", &[], "node1").unwrap_err();
        assert_eq!(error.to_string(), r#"no pod "web": nothing runs here"#);
    }

    proptest! {
        #[test]
        fn never_panics_and_every_full_name_is_found(argument in "\\PC{0,20}", node in "[a-z-]{0,6}") {
            let pods = pods();
            let _ = resolve(&argument, &pods, &node);
            for pod in &pods {
                prop_assert_eq!(resolve(&pod.to_string(), &pods, &node), Ok(pod));
            }
        }
    }
}
