use rstest::rstest;

use super::*;
use crate::source::problem::joined;

fn rules(strictness: Strictness) -> Rules {
    Rules {
        node_name: "node".to_owned(),
        strictness,
    }
}

fn load(text: &str, strictness: Strictness) -> Result<Loaded, Vec<Problem>> {
    rules(strictness).load_pod(text.as_bytes(), Origin::File(Path::new("/m/web.yaml")))
}

/// A good Pod with more in its spec, in JSON so that the cases can be short.
fn with_spec(more: &str) -> String {
    format!(
        r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "web"}}, "spec": {{{more}}}}}"#
    )
}

/// A good Pod with more in its one container.
fn with_container(more: &str) -> String {
    with_spec(&format!(
        r#""volumes": [{{"name": "v", "emptyDir": {{}}}}], "containers": [{{"name": "c", "image": "busybox:1", {more}}}]"#
    ))
}

const WEB: &str = "apiVersion: v1
kind: Pod
metadata:
  name: web
spec:
  containers:
  - name: c
    image: busybox:1
";

/// A good Pod in YAML with lines more in its container or, with less indent, in its spec.
fn web_with(more: &str) -> String {
    format!("{WEB}{more}")
}

/// Each broken manifest gets one line that names the field and says what was expected.
#[rstest]
#[case::empty("", "is empty: expected one Pod")]
#[case::only_a_comment("# later\n", "is empty: expected one Pod")]
#[case::an_empty_document("---\n", "is empty: expected one Pod")]
#[case::half_written(
    "spec: [",
    "is neither YAML nor JSON: unclosed bracket '[' at line 1, column 7"
)]
#[case::bad_yaml(
    "a: b: c",
    "is neither YAML nor JSON: mapping values are not allowed in this context at line 1, column 5"
)]
#[case::half_written_json(
    r#"{"kind": "Pod","#,
    "is neither YAML nor JSON: unclosed bracket '{' at line 1, column 1"
)]
#[case::binary(
    "\0\x01\x02",
    "is neither YAML nor JSON: unexpected character: `\\u{0}' at line 1, column 1"
)]
#[case::text(
    "just text",
    "is plain text: expected a Pod object with apiVersion, kind, metadata and spec"
)]
#[case::a_list(
    "- a\n",
    "is a list: expected a Pod object with apiVersion, kind, metadata and spec"
)]
#[case::a_number(
    "42",
    "is a number: expected a Pod object with apiVersion, kind, metadata and spec"
)]
#[case::no_api_version(
    "kind: Pod",
    "apiVersion: Required value: expected a Pod (apiVersion v1, kind Pod)"
)]
#[case::no_kind(
    "apiVersion: v1",
    "kind: Required value: expected a Pod (apiVersion v1, kind Pod)"
)]
#[case::a_deployment(
    "apiVersion: apps/v1\nkind: Deployment",
    "kind: Unsupported value: \"Deployment\": a manifest holds one Pod (apiVersion v1, kind Pod)"
)]
#[case::a_list_object(
    "apiVersion: v1\nkind: List\nitems: []",
    "kind: Unsupported value: \"List\": a manifest holds one Pod (apiVersion v1, kind Pod)"
)]
#[case::a_pod_list(
    "apiVersion: v1\nkind: PodList\nitems: []",
    "kind: Unsupported value: \"PodList\": a manifest holds one Pod (apiVersion v1, kind Pod)"
)]
#[case::another_version(
    "apiVersion: v2\nkind: Pod",
    "apiVersion: Unsupported value: \"v2\": supported values: \"v1\""
)]
#[case::no_name(
    "apiVersion: v1\nkind: Pod\nspec: {}",
    "metadata.name: Required value: name is needed for the pod"
)]
#[case::no_containers(
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web}",
    "spec.containers: Required value"
)]
#[case::no_image(
    &with_spec(r#""containers": [{"name": "c"}]"#),
    "spec.containers[0].image: Required value"
)]
#[case::no_container_name(
    &with_spec(r#""containers": [{"image": "i:1"}]"#),
    "spec.containers[0].name: Required value"
)]
#[case::image_with_blanks(
    &with_spec(r#""containers": [{"name": "c", "image": " i:1"}]"#),
    "spec.containers[0].image: Invalid value: \" i:1\": must not have leading or trailing whitespace"
)]
#[case::unknown_fields(
    &web_with("    imagee: x\n  foo: 1\n"),
    "spec.containers[0].imagee: unknown field; spec.foo: unknown field"
)]
#[case::two_documents(
    &web_with("---\nanything\n"),
    "holds more than one document: expected one Pod (what follows the first \"---\" is not read)"
)]
#[case::a_key_twice(
    &web_with("    image: other:1\n"),
    "the key \"image\" stands twice in one mapping (line 9): expected each key once"
)]
#[case::number_for_a_string(
    &web_with("    env:\n    - name: A\n      value: 1\n"),
    "spec.containers[0].env[0].value: invalid type: integer `1`, expected a string"
)]
#[case::boolean_for_a_string(
    &web_with("    env:\n    - name: A\n      value: yes\n"),
    "spec.containers[0].env[0].value: invalid type: boolean `true`, expected a string"
)]
#[case::string_for_a_number(
    &web_with("    ports:\n    - containerPort: http\n"),
    "spec.containers[0].ports[0].containerPort: invalid type: string \"http\", expected a whole number"
)]
#[case::string_for_a_list(
    &web_with("    command: sh\n"),
    "spec.containers[0].command: invalid type: string \"sh\", expected a list"
)]
#[case::list_for_a_string(
    &web_with("  restartPolicy: [Always]\n"),
    "spec.restartPolicy: invalid type: sequence, expected a string"
)]
#[case::string_for_a_boolean(
    &web_with("  hostNetwork: maybe\n"),
    "spec.hostNetwork: invalid type: string \"maybe\", expected a boolean"
)]
#[case::aliases_without_end(
    "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e]\n",
    "is neither YAML nor JSON: alias replay limit exceeded: total_replayed_events=100001 > 100000 at line 1, column 16 (defined at line 4, column 7) (used at line 5, column 29)"
)]
#[case::too_deep(
    &"[".repeat(100_000),
    "is neither YAML nor JSON: recursion limit exceeded at line 1, column 256"
)]
#[case::json_too_deep(
    &r#"{"a":"#.repeat(100_000),
    "is neither YAML nor JSON: budget breached: Depth { depth: 65 } at line 1, column 321"
)]
#[case::two_containers_of_a_name(
    &with_spec(r#""initContainers": [{"name": "c", "image": "i:1"}], "containers": [{"name": "c", "image": "i:1"}, {"name": "c", "image": "i:1"}]"#),
    "spec.containers[1].name: Duplicate value: \"c\"; spec.initContainers[0].name: Duplicate value: \"c\""
)]
#[case::not_a_quantity(
    &with_container(r#""resources": {"limits": {"cpu": "lots"}}"#),
    "spec.containers[0].resources.limits[cpu]: Invalid value: \"lots\": quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)]
#[case::a_negative_quantity(
    &with_container(r#""resources": {"requests": {"memory": "-1Mi"}}"#),
    "spec.containers[0].resources.requests[memory]: Invalid value: \"-1Mi\": must be greater than or equal to 0"
)]
#[case::request_over_limit(
    &with_container(r#""resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "1500Mi"}}"#),
    "spec.containers[0].resources.requests: Invalid value: \"2Gi\": must be less than or equal to memory limit of 1500Mi"
)]
#[case::two_volumes_of_a_name(
    &with_spec(r#""containers": [{"name": "c", "image": "i:1"}], "volumes": [{"name": "a"}, {"name": "a"}]"#),
    "spec.volumes[1].name: Duplicate value: \"a\""
)]
#[case::two_sources_of_a_volume(
    &with_spec(r#""containers": [{"name": "c", "image": "i:1"}], "volumes": [{"name": "a", "emptyDir": {}, "hostPath": {"path": "/a"}}]"#),
    "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type"
)]
#[case::a_host_path_type(
    &with_spec(r#""containers": [{"name": "c", "image": "i:1"}], "volumes": [{"name": "a", "hostPath": {"path": "/a/../b", "type": "Dir"}}]"#),
    "spec.volumes[0].hostPath.path: Invalid value: \"/a/../b\": must not contain '..'; spec.volumes[0].hostPath.type: Unsupported value: \"Dir\": supported values: \"\", \"BlockDevice\", \"CharDevice\", \"Directory\", \"DirectoryOrCreate\", \"File\", \"FileOrCreate\", \"Socket\""
)]
#[case::no_such_volume(
    &with_container(r#""volumeMounts": [{"name": "w", "mountPath": "/w"}]"#),
    "spec.containers[0].volumeMounts[0].name: Not found: \"w\""
)]
#[case::one_mount_path_twice(
    &with_container(r#""volumeMounts": [{"name": "v", "mountPath": "/v"}, {"name": "v", "mountPath": "/v"}]"#),
    "spec.containers[0].volumeMounts[1].mountPath: Invalid value: \"/v\": must be unique"
)]
#[case::sub_path_upwards(
    &with_container(r#""volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "a/../../b"}]"#),
    "spec.containers[0].volumeMounts[0].subPath: Invalid value: \"a/../../b\": must not contain '..'"
)]
#[case::sub_path_and_expression(
    &with_container(r#""volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "a", "subPathExpr": "/$(B)"}]"#),
    "spec.containers[0].volumeMounts[0].subPathExpr: Invalid value: \"/$(B)\": subPathExpr and subPath are mutually exclusive; spec.containers[0].volumeMounts[0].subPathExpr: Invalid value: \"/$(B)\": must be a relative path"
)]
#[case::propagation(
    &with_container(r#""volumeMounts": [{"name": "v", "mountPath": "/v", "mountPropagation": "Bidirectional"}]"#),
    "spec.containers[0].volumeMounts[0].mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged containers"
)]
#[case::ports(
    &with_container(r#""ports": [{"name": "a", "containerPort": 70000}, {"name": "a", "containerPort": 1, "protocol": "IP"}]"#),
    "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive; spec.containers[0].ports[1].name: Duplicate value: \"a\"; spec.containers[0].ports[1].protocol: Unsupported value: \"IP\": supported values: \"SCTP\", \"TCP\", \"UDP\""
)]
#[case::one_host_port_twice(
    &with_container(r#""ports": [{"containerPort": 1, "hostPort": 80}, {"containerPort": 2, "hostPort": 80}]"#),
    "spec.containers[0].ports[1].hostPort: Duplicate value: \"TCP//80\""
)]
#[case::host_network_port(
    &with_spec(r#""hostNetwork": true, "containers": [{"name": "c", "image": "i:1", "ports": [{"containerPort": 1, "hostPort": 80}]}]"#),
    "spec.containers[0].ports[0].hostPort: Invalid value: 80: must match `containerPort` when `hostNetwork` is true"
)]
#[case::a_variable_s_name(
    &with_container(r#""env": [{"name": "A=B"}, {"value": "x"}]"#),
    "spec.containers[0].env[0].name: Invalid value: \"A=B\": a valid environment variable name must consist only of printable ASCII characters other than '='; spec.containers[0].env[1].name: Required value"
)]
#[case::a_field_of_the_pod(
    &with_container(r#""env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodename"}}}]"#),
    "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Unsupported value: \"spec.nodename\": supported values: \"metadata.name\", \"metadata.namespace\", \"metadata.uid\", \"spec.nodeName\", \"spec.serviceAccountName\", \"status.hostIP\", \"status.hostIPs\", \"status.podIP\", \"status.podIPs\""
)]
#[case::value_and_value_from(
    &with_container(r#""env": [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]"#),
    "spec.containers[0].env[0].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty"
)]
#[case::a_divisor(
    &with_container(r#""env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "2m"}}}]"#),
    "spec.containers[0].env[0].valueFrom.resourceFieldRef.divisor: Invalid value: \"limits.cpu\": only divisor's values 1m, 1 are supported with the cpu resource"
)]
#[case::restart_policy(
    &web_with("  restartPolicy: Sometimes\n"),
    "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\""
)]
#[case::dns_without_servers(
    &web_with("  dnsPolicy: None\n"),
    "spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"
)]
#[case::dns_servers(
    &web_with("  dnsConfig: {nameservers: [a, 1.1.1.1, 1.1.1.1, 1.1.1.1]}\n"),
    "spec.dnsConfig.nameservers: Invalid value: [\"a\",\"1.1.1.1\",\"1.1.1.1\",\"1.1.1.1\"]: must not have more than 3 nameservers; spec.dnsConfig.nameservers[0]: Invalid value: \"a\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
)]
#[case::host_alias(
    &web_with("  hostAliases: [{ip: here, hostnames: [a]}]\n"),
    "spec.hostAliases[0].ip: Invalid value: \"here\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
)]
#[case::shared_and_host_processes(
    &web_with("  hostPID: true\n  shareProcessNamespace: true\n"),
    "spec.shareProcessNamespace: Invalid value: true: ShareProcessNamespace and HostPID cannot both be enabled"
)]
#[case::user_ids(
    &web_with("    securityContext: {runAsUser: -1}\n  securityContext: {fsGroup: 3000000000}\n"),
    "spec.containers[0].securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive; spec.securityContext.fsGroup: Invalid value: 3000000000: must be between 0 and 2147483647, inclusive"
)]
#[case::privileges(
    &web_with("    securityContext: {privileged: true, allowPrivilegeEscalation: false}\n"),
    "spec.containers[0].securityContext: Invalid value: {\"allowPrivilegeEscalation\":false,\"privileged\":true}: cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
)]
#[case::seccomp(
    &web_with("  securityContext: {seccompProfile: {type: Localhost}}\n"),
    "spec.securityContext.seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost"
)]
#[case::what_is_not_built_beside_what_is_wrong(
    &with_spec(r#""containers": [{"name": "c", "livenessProbe": {}}]"#),
    "spec.containers[0].livenessProbe: Forbidden: probes: not built yet; spec.containers[0].image: Required value"
)]
fn a_broken_manifest_gets_one_clear_message(#[case] text: &str, #[case] expected: &str) {
    let problems = load(text, Strictness::Refuse).unwrap_err();
    assert_eq!(joined(&problems), expected);
}

#[rstest]
#[case("web_server", "a lowercase RFC 1123 subdomain must consist of")]
#[case(&"a".repeat(250), "must be no more than 253 bytes")]
fn a_bad_name_is_refused_with_the_rule(#[case] name: &str, #[case] rule: &str) {
    let problems = load(&WEB.replace("web", name), Strictness::Refuse).unwrap_err();
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].field, "metadata.name");
    assert!(problems[0].message.contains(rule), "{}", problems[0]);
}

#[rstest]
#[case("    imagee: x\n", "spec.containers[0].imagee: unknown field")]
#[case(
    "---\n]]]",
    "holds more than one document: expected one Pod (what follows the first \"---\" is not read)"
)]
#[case(
    "    name: c\n",
    "the key \"name\" stands twice in one mapping (line 9): its last value is used"
)]
fn run_warns_of_what_upstream_passes_over(#[case] more: &str, #[case] warning: &str) {
    let loaded = load(&web_with(more), Strictness::Warn).unwrap();
    assert_eq!(joined(&loaded.warnings), warning);
    assert_eq!(loaded.pods[0].metadata.name.as_deref(), Some("web-node"));
}

#[test]
fn a_manifest_that_only_ends_in_dashes_is_one_document() {
    let loaded = load(&format!("---\n{WEB}---\n"), Strictness::Refuse).unwrap();
    assert_eq!(loaded.pods.len(), 1);
}

#[test]
fn yaml_is_read_as_upstream_reads_it() {
    let text = web_with(
        "    resources: {limits: {cpu: 1.5, memory: 64Mi}}
    securityContext: {privileged: yes, runAsUser: 0644}
  terminationGracePeriodSeconds: 0x10
",
    );
    let pod = load(&text, Strictness::Refuse).unwrap().pods.remove(0);
    let spec = pod.spec.unwrap();
    assert_eq!(spec.termination_grace_period_seconds, Some(16));
    let container = &spec.containers[0];
    let context = container.security_context.as_ref().unwrap();
    assert_eq!(
        (context.privileged, context.run_as_user),
        (Some(true), Some(420))
    );
    let limits = container
        .resources
        .as_ref()
        .unwrap()
        .limits
        .as_ref()
        .unwrap();
    assert_eq!(limits["cpu"].0, "1.5");
}

#[test]
fn json_with_tabs_is_read() {
    let text = WEB_JSON.replace("  ", "\t");
    assert_eq!(load(&text, Strictness::Refuse).unwrap().pods.len(), 1);
}

const WEB_JSON: &str = r#"{
  "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
  "spec": {"containers": [{"name": "c", "image": "busybox:1"}]}
}"#;

#[test]
fn a_url_may_give_a_list() {
    let list = r#"{"apiVersion": "v1", "kind": "PodList", "items": [
        {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}},
        {"metadata": {"name": "b"}, "spec": {"containers": [{"name": "c"}]}}]}"#;
    let rules = rules(Strictness::Refuse);
    let origin = Origin::Url("http://x/");
    let problems = rules.load_pods(list.as_bytes(), origin).unwrap_err();
    assert_eq!(
        joined(&problems),
        "items[1].spec.containers[0].image: Required value"
    );
    let good = list.replace(r#""name": "c"}]"#, r#""name": "c", "image": "i:1"}]"#);
    let loaded = rules.load_pods(good.as_bytes(), origin).unwrap();
    assert_eq!(loaded.pods.len(), 2);
}

#[test]
fn a_bug_in_a_parser_costs_the_manifest_and_not_the_agent() {
    let problems = contained(|| panic!("a bug")).unwrap_err();
    assert!(problems[0].message.contains("a bug in the agent"));
}
