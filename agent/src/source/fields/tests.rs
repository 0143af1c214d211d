use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use rstest::rstest;
use serde::{
    Deserialize as _,
    de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor},
    forward_to_deserialize_any,
};

use super::*;

/// The API's types as its generated code knows them: type -> field -> the field's own type where
/// that has fields. Found by letting the code read an object in which every field is set.
#[derive(Default)]
struct Types(BTreeMap<String, BTreeMap<&'static str, Option<&'static str>>>);

/// Gives each type whatever it asks for, and writes down what it asked for.
struct Recorder<'a> {
    types: &'a mut Types,
    /// The name of the struct that was read, for the field that holds it.
    seen: &'a mut Option<&'static str>,
}

type Error = de::value::Error;

impl<'de> de::Deserializer<'de> for Recorder<'_> {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        *self.seen = Some(name);
        self.types.0.entry(name.to_owned()).or_default();
        visitor.visit_map(Fields {
            types: self.types,
            owner: name,
            left: fields,
        })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(One(Some(self)))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(One(Some(self)))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        // A date, so that times read it too.
        visitor.visit_str("2026-01-01T00:00:00Z")
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_string(visitor)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bool(true)
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_i32(1)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_i64(1)
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_i64(1)
    }

    forward_to_deserialize_any! {
        i8 i16 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct tuple
        tuple_struct enum identifier ignored_any
    }
}

struct Fields<'a> {
    types: &'a mut Types,
    owner: &'static str,
    left: &'static [&'static str],
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let Some(name) = self.left.first() else {
            return Ok(None);
        };
        seed.deserialize(de::value::BorrowedStrDeserializer::new(name))
            .map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let (name, left) = self.left.split_first().expect("a key was read");
        self.left = left;
        let given = match *name {
            // Checked by the generated code.
            "apiVersion" if self.owner == "Pod" => Some("v1"),
            "kind" if self.owner == "Pod" => Some("Pod"),
            _ => None,
        };
        let mut seen = None;
        let value = match given {
            Some(text) => seed.deserialize(de::value::BorrowedStrDeserializer::new(text))?,
            None => seed.deserialize(Recorder {
                types: self.types,
                seen: &mut seen,
            })?,
        };
        let fields = self.types.0.entry(self.owner.to_owned()).or_default();
        fields.insert(name, seen);
        Ok(value)
    }
}

/// A list or a map with one entry.
struct One<'a>(Option<Recorder<'a>>);

impl<'de> SeqAccess<'de> for One<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        self.0.take().map(|it| seed.deserialize(it)).transpose()
    }
}

impl<'de> MapAccess<'de> for One<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        if self.0.is_none() {
            return Ok(None);
        }
        seed.deserialize(de::value::BorrowedStrDeserializer::new("key"))
            .map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(self.0.take().expect("a key was read"))
    }
}

fn api_types() -> Types {
    let mut types = Types::default();
    let mut seen = None;
    Pod::deserialize(Recorder {
        types: &mut types,
        seen: &mut seen,
    })
    .expect("every type of a pod is known to the recorder");
    types
}

#[test]
fn every_field_of_a_pod_has_a_verdict_and_every_verdict_a_field() {
    let types = api_types();
    let mut kinds: Vec<&Kind> = vec![&table::POD];
    let mut next = 0;
    while let Some(kind) = kinds.get(next).copied() {
        next += 1;
        for field in kind.fields {
            if let Verdict::Parts(part) = field.verdict {
                kinds.push(part);
            }
        }
        if kind.others.is_some() {
            continue; // a map: its keys are no fields of the API
        }
        let api = &types.0[kind.name];
        let decided: BTreeSet<&str> = kind.fields.iter().map(|field| field.name).collect();
        let known: BTreeSet<&str> = api.keys().copied().collect();
        assert_eq!(decided, known, "fields of {}", kind.name);
        assert_eq!(decided.len(), kind.fields.len(), "doubles in {}", kind.name);
        for field in kind.fields {
            let inner = api[field.name];
            match field.verdict {
                Verdict::Parts(part) if part.others.is_none() => {
                    assert_eq!(
                        inner,
                        Some(part.name),
                        "type of {}.{}",
                        kind.name,
                        field.name
                    );
                }
                Verdict::ActedOn => {
                    assert_eq!(inner, None, "{}.{} has parts", kind.name, field.name);
                }
                Verdict::Parts(_)
                | Verdict::NoEffect(_)
                | Verdict::Only(..)
                | Verdict::NotBuilt(_)
                | Verdict::ApiReference(_)
                | Verdict::Forbidden(_) => {}
            }
        }
    }
    assert!(next > 25, "the walk went through the table");
}

#[test]
fn the_page_of_fields_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/FIELDS.md");
    if std::env::var_os("SKEP_BLESS").is_some() {
        std::fs::write(path, page()).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == page(),
        "docs/FIELDS.md is not what the table says: run with SKEP_BLESS=1"
    );
}

fn problems(spec: Value) -> Vec<String> {
    let pod = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec,
    });
    check(&pod).iter().map(Problem::to_string).collect()
}

#[rstest]
#[case::probe(
    r#"{"containers": [{"livenessProbe": {"exec": {}}}]}"#,
    "spec.containers[0].livenessProbe: Forbidden: probes: not built yet"
)]
#[case::hook(
    r#"{"initContainers": [{}, {"lifecycle": {"preStop": {}}}]}"#,
    "spec.initContainers[1].lifecycle: Forbidden: lifecycle hooks and stop signals: not built yet"
)]
#[case::config_map_volume(
    r#"{"volumes": [{"name": "a", "configMap": {"name": "x"}}]}"#,
    "spec.volumes[0].configMap: Forbidden: static pods may not reference configmaps (via configmap volumes)"
)]
#[case::projected_token(
    r#"{"volumes": [{"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}"#,
    "spec.volumes[0].projected.sources[0].serviceAccountToken: Forbidden: static pods may not reference serviceaccounts (via projected volumes)"
)]
#[case::projected_nothing(
    r#"{"volumes": [{"projected": {}}]}"#,
    "spec.volumes[0].projected: Forbidden: projected volumes: not built yet"
)]
#[case::env_from_secret(
    r#"{"containers": [{"envFrom": [{"secretRef": {"name": "x"}}]}]}"#,
    "spec.containers[0].envFrom[0].secretRef: Forbidden: static pods may not reference secrets"
)]
#[case::service_account(
    r#"{"serviceAccountName": "x"}"#,
    "spec.serviceAccountName: Forbidden: static pods may not reference serviceaccounts"
)]
#[case::user_namespaces(
    r#"{"hostUsers": false}"#,
    "spec.hostUsers: Unsupported value: false: user namespaces: not built yet; supported values: \"true\""
)]
#[case::huge_pages(
    r#"{"containers": [{"resources": {"limits": {"hugepages-2Mi": "2Mi"}}}]}"#,
    "spec.containers[0].resources.limits[hugepages-2Mi]: Forbidden: huge pages and device resources: not built yet"
)]
#[case::disk_limit(
    r#"{"volumes": [{"emptyDir": {"sizeLimit": "1Gi"}}]}"#,
    "spec.volumes[0].emptyDir.sizeLimit: Forbidden: size limits on disk: not built yet (a limit works with medium Memory)"
)]
#[case::restart_policy_of_a_container(
    r#"{"containers": [{"restartPolicy": "Always"}]}"#,
    "spec.containers[0].restartPolicy: Forbidden: restart policies of regular containers: not built yet"
)]
#[case::ephemeral(
    r#"{"ephemeralContainers": [{"name": "x"}]}"#,
    "spec.ephemeralContainers: Forbidden: cannot be set on create"
)]
fn what_is_not_built_is_refused_by_name(#[case] spec: &str, #[case] expected: &str) {
    assert_eq!(problems(serde_json::from_str(spec).unwrap()), [expected]);
}

#[test]
fn what_has_no_effect_or_is_empty_passes() {
    let spec = serde_json::json!({
        "tolerations": [{"operator": "Exists"}], "affinity": {"nodeAffinity": {}},
        "priorityClassName": "system-node-critical", "priority": 2_000_001_000,
        "schedulerName": "x", "nodeSelector": {"a": "b"}, "imagePullSecrets": [],
        "serviceAccountName": "", "runtimeClassName": null, "hostUsers": true,
        "automountServiceAccountToken": false, "os": {"name": "linux"},
        "initContainers": [{"restartPolicy": "Always"}],
        "volumes": [{"name": "a", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}],
        "containers": [{"envFrom": [], "resizePolicy": [], "securityContext": {},
            "resources": {"requests": {"ephemeral-storage": "1Gi", "cpu": "1"}}}],
    });
    assert_eq!(problems(spec), Vec::<String>::new());
}
