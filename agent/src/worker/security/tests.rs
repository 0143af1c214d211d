use super::*;
use crate::worker::{
    facts,
    testing::{pod, pod_with_container},
};
use rstest::rstest;
use serde_json::{Value, json};

fn context(pod: &Pod, image_user: &ImageUser) -> Result<LinuxContainerSecurityContext, String> {
    let container = &pod.spec().containers[0];
    of_container(pod, container, image_user, &facts::for_tests()).map_err(|error| error.message)
}

fn with(of_pod: Value, own: Value) -> Pod {
    pod(json!({"securityContext": of_pod, "containers": [{"name": "app", "securityContext": own}]}))
}

fn image(uid: Option<i64>, username: &str) -> ImageUser {
    ImageUser {
        uid,
        username: username.into(),
    }
}

#[rstest]
#[case::image_number(json!({}), json!({}), image(Some(7), ""), Some(7), "")]
#[case::image_name(json!({}), json!({}), image(None, "www"), None, "www")]
#[case::pod(json!({"runAsUser": 5}), json!({}), image(None, "www"), Some(5), "")]
#[case::own_first(json!({"runAsUser": 5}), json!({"runAsUser": 6}), image(Some(7), ""), Some(6), "")]
fn runs_as_the_nearest_user(
    #[case] of_pod: Value,
    #[case] own: Value,
    #[case] image_user: ImageUser,
    #[case] uid: Option<i64>,
    #[case] username: &str,
) {
    let context = context(&with(of_pod, own), &image_user).unwrap();
    assert_eq!(context.run_as_user.map(|user| user.value), uid);
    assert_eq!(context.run_as_username, username);
}

#[rstest]
#[case(json!({"runAsNonRoot": true, "runAsUser": 0}), image(Some(7), ""),
    "container's runAsUser breaks non-root policy (pod: \"web_default(uid-1)\", container: app)")]
#[case(json!({"runAsNonRoot": true}), image(Some(0), ""),
    "container has runAsNonRoot and image will run as root (pod: \"web_default(uid-1)\", container: app)")]
#[case(json!({"runAsNonRoot": true}), image(None, "www"),
    "container has runAsNonRoot and image has non-numeric user (www), cannot verify user is non-root (pod: \"web_default(uid-1)\", container: app)")]
#[case(json!({"runAsNonRoot": true}), image(Some(1 << 31), ""),
    "container has runAsNonRoot and image has an invalid user id (2147483648). (Must be 1-(2147483647)): must be between 0 and 2147483647, inclusive (pod: \"web_default(uid-1)\", container: app)")]
fn refuses_root_where_it_is_not_wanted(
    #[case] of_pod: Value,
    #[case] image_user: ImageUser,
    #[case] message: &str,
) {
    assert_eq!(
        context(&with(of_pod, json!({})), &image_user),
        Err(message.to_owned())
    );
}

#[rstest]
#[case(json!({"runAsNonRoot": true}), json!({"runAsNonRoot": false}), image(Some(0), ""))]
#[case(json!({"runAsNonRoot": true, "runAsUser": 1}), json!({}), image(Some(0), ""))]
#[case(json!({"runAsNonRoot": true}), json!({}), image(Some(1), ""))]
#[case(json!({}), json!({}), image(Some(0), ""))]
fn accepts_others(#[case] of_pod: Value, #[case] own: Value, #[case] image_user: ImageUser) {
    assert!(context(&with(of_pod, own), &image_user).is_ok());
}

#[rstest]
#[case(json!({}), NamespaceMode::Pod, NamespaceMode::Container, NamespaceMode::Pod)]
#[case(json!({"hostNetwork": true}), NamespaceMode::Node, NamespaceMode::Container, NamespaceMode::Pod)]
#[case(json!({"shareProcessNamespace": true}), NamespaceMode::Pod, NamespaceMode::Pod, NamespaceMode::Pod)]
#[case(json!({"hostPID": true, "hostIPC": true}), NamespaceMode::Pod, NamespaceMode::Node, NamespaceMode::Node)]
fn shares_namespaces_as_the_pod_says(
    #[case] spec: Value,
    #[case] network: NamespaceMode,
    #[case] pid: NamespaceMode,
    #[case] ipc: NamespaceMode,
) {
    let pod = pod(spec);
    let options = namespaces(&pod);
    assert_eq!(options.network(), network);
    assert_eq!(options.pid(), pid);
    assert_eq!(options.ipc(), ipc);
    assert_eq!(
        context(&pod, &ImageUser::default())
            .unwrap()
            .namespace_options,
        of_sandbox(&pod).unwrap().namespace_options
    );
}

#[test]
fn hands_on_capabilities_groups_and_flags() {
    let pod = with(
        json!({"fsGroup": 1, "supplementalGroups": [2, 3], "supplementalGroupsPolicy": "Strict", "runAsGroup": 9}),
        json!({
            "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]},
            "privileged": true,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
        }),
    );
    let context = context(&pod, &ImageUser::default()).unwrap();
    let capabilities = context.capabilities.clone().unwrap();
    assert_eq!(capabilities.add_capabilities, ["NET_ADMIN"]);
    assert_eq!(capabilities.drop_capabilities, ["ALL"]);
    assert!(context.privileged && context.no_new_privs && context.readonly_rootfs);
    assert_eq!(context.supplemental_groups, [1, 2, 3]);
    assert_eq!(
        context.supplemental_groups_policy(),
        SupplementalGroupsPolicy::Strict
    );
    assert_eq!(context.run_as_group.unwrap().value, 9);
    // Privileged changes neither the paths nor the profile: the runtime lifts them.
    assert_eq!(context.masked_paths.len(), 12);
    assert_eq!(context.readonly_paths.len(), 5);

    let sandbox = of_sandbox(&pod).unwrap();
    assert!(sandbox.privileged);
    assert_eq!(sandbox.supplemental_groups, [1, 2, 3]);
    assert_eq!(
        sandbox.seccomp.unwrap().profile_type(),
        ProfileType::RuntimeDefault
    );
}

#[test]
fn masks_throttle_folders_and_nothing_where_proc_is_unmasked() {
    let mut facts = facts::for_tests();
    facts.thermal_throttle_paths = vec!["/sys/devices/system/cpu/cpu0/thermal_throttle".into()];
    let of = |own: Value| {
        let pod = with(json!({}), own);
        of_container(
            &pod,
            &pod.spec().containers[0],
            &ImageUser::default(),
            &facts,
        )
        .unwrap()
    };
    assert_eq!(
        of(json!({})).masked_paths[12],
        facts.thermal_throttle_paths[0]
    );
    let unmasked = of(json!({"procMount": "Unmasked"}));
    assert!(unmasked.masked_paths.is_empty() && unmasked.readonly_paths.is_empty());
}

#[rstest]
#[case::unset(json!({}), json!({}), "unconfined")]
#[case::of_pod(json!({"seccompProfile": {"type": "RuntimeDefault"}}), json!({}), "default")]
#[case::own(
    json!({"seccompProfile": {"type": "RuntimeDefault"}}),
    json!({"seccompProfile": {"type": "Unconfined"}}),
    "unconfined"
)]
#[case::file(
    json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "a/b.json"}}),
    json!({}),
    "/var/lib/kubelet/seccomp/a/b.json"
)]
#[case::no_file(
    json!({"seccompProfile": {"type": "Localhost"}}),
    json!({}),
    "localhostProfile must be set if seccompProfile type is Localhost."
)]
fn chooses_the_seccomp_profile(#[case] of_pod: Value, #[case] own: Value, #[case] expected: &str) {
    let chosen = match context(&with(of_pod, own), &ImageUser::default()) {
        Err(message) => message,
        Ok(context) => {
            let profile = context.seccomp.unwrap();
            match profile.profile_type() {
                ProfileType::RuntimeDefault => "default".into(),
                ProfileType::Unconfined => "unconfined".into(),
                ProfileType::Localhost => profile.localhost_ref,
            }
        }
    };
    assert_eq!(chosen, expected);
}

#[test]
fn seccomp_default_is_for_those_who_say_nothing() {
    let mut facts = facts::for_tests();
    facts.seccomp_default = true;
    let pod = pod(json!({}));
    let context = of_container(
        &pod,
        &pod.spec().containers[0],
        &ImageUser::default(),
        &facts,
    )
    .unwrap();
    assert_eq!(
        context.seccomp.unwrap().profile_type(),
        ProfileType::RuntimeDefault
    );
}

#[test]
fn tells_the_apparmor_profile_in_both_forms() {
    let pod = pod_with_container(json!({
        "securityContext": {"appArmorProfile": {"type": "Localhost", "localhostProfile": "mine"}}
    }));
    let context = context(&pod, &ImageUser::default()).unwrap();
    assert_eq!(context.apparmor.clone().unwrap().localhost_ref, "mine");
    #[expect(deprecated, reason = "older runtimes read nothing else")]
    let deprecated = context.apparmor_profile;
    assert_eq!(deprecated, "localhost/mine");
}
