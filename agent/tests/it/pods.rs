//! A pod's life, and what its containers see.

use std::fs;

use serde_json::json;

use crate::node::{
    Node, SOON,
    yaml::{self, STAY},
};

#[tokio::test]
async fn a_pod_runs_and_is_gone_with_its_manifest() {
    let node = Node::builder().up().await;
    node.write("web.yaml", yaml::pod("web").container("app", STAY));
    node.until_running("web").await;
    let status = node.status("web").await;
    assert_eq!(status.phase.as_deref(), Some("Running"));
    let ip = status.pod_ip.unwrap();
    assert!(ip.starts_with("10.88."), "{ip}");
    let conditions: Vec<_> = status
        .conditions
        .iter()
        .flatten()
        .map(|condition| format!("{}={}", condition.type_, condition.status))
        .collect();
    for expected in [
        "PodReadyToStartContainers=True",
        "Initialized=True",
        "Ready=True",
        "ContainersReady=True",
        "PodScheduled=True",
    ] {
        assert!(conditions.iter().any(|is| is == expected), "{conditions:?}");
    }
    let container = node.container("web", "app").await;
    assert_eq!(container.restart_count, 0);
    assert_eq!(container.image, yaml::IMAGE);
    assert!(container.ready);

    node.remove_manifest("web.yaml");
    node.until_gone("web").await;
    let reasons: Vec<_> = node
        .events_of("web")
        .await
        .into_iter()
        .map(|entry| entry.reason)
        .collect();
    for expected in ["Pulled", "Created", "Started", "Killing", "Died"] {
        assert!(
            reasons.iter().any(|reason| reason == expected),
            "{reasons:?}"
        );
    }
    assert_eq!(node.relist().await.missed, Vec::<String>::new());
    node.down().await;
}

#[tokio::test]
async fn a_container_sees_its_environment_and_its_pods_names() {
    let node = Node::builder().up().await;
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let manifest = yaml::pod("env")
        .metadata(json!({"labels": {"app": "seen"}, "annotations": {"note": "well"}}))
        .container("app", STAY)
        .with(json!({
            "env": [
                {"name": "PLAIN", "value": "a b"},
                {"name": "MADE", "value": "$(PLAIN)-$$(PLAIN)-$(NONE)"},
                field("POD_NAME", "metadata.name"),
                field("POD_NAMESPACE", "metadata.namespace"),
                field("POD_UID", "metadata.uid"),
                field("LABEL", "metadata.labels['app']"),
                field("NOTE", "metadata.annotations['note']"),
                field("NODE", "spec.nodeName"),
                field("POD_IP", "status.podIP"),
                {"name": "LIMIT", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
                {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "requests.cpu", "divisor": "1m"}}},
            ],
            "resources": {"requests": {"cpu": "20m"}, "limits": {"memory": "64Mi"}},
            "workingDir": "/tmp",
        }));
    node.write("env.yaml", manifest);
    node.until_running("env").await;
    let pods = node.pods().await;
    let pod = &pods.pod("env").unwrap().object;
    let uid = pod.metadata.uid.clone().unwrap();
    let ip = pod.status.as_ref().unwrap().pod_ip.clone().unwrap();
    let seen = node
        .sh(
            "env",
            "echo \"$PLAIN|$MADE|$POD_NAME|$POD_NAMESPACE|$LABEL|$NOTE|$NODE|$LIMIT|$CPU|$PWD\"",
        )
        .await;
    assert_eq!(
        seen,
        "a b|a b-$(PLAIN)-$(NONE)|env-node|default|seen|well|node|64|20|/tmp\n"
    );
    let seen = node.sh("env", "echo $POD_UID $POD_IP").await;
    assert_eq!(seen, format!("{uid} {ip}\n"));
    node.down().await;
}

#[tokio::test]
async fn a_container_sees_its_hostname_hosts_and_resolver() {
    let node = Node::builder().up().await;
    let manifest = yaml::pod("names")
        .spec(json!({
            "hostname": "queen",
            "hostAliases": [{"ip": "192.0.2.7", "hostnames": ["far.example", "far"]}],
            "dnsPolicy": "None",
            "dnsConfig": {
                "nameservers": ["192.0.2.53"],
                "searches": ["hive.example"],
                "options": [{"name": "ndots", "value": "3"}],
            },
        }))
        .container("app", STAY);
    node.write("names.yaml", manifest);
    node.until_running("names").await;
    let ip = node.status("names").await.pod_ip.unwrap();
    assert_eq!(node.sh("names", "hostname").await, "queen\n");
    let hosts = node.sh("names", "cat /etc/hosts").await;
    for line in [&format!("{ip}\tqueen"), "192.0.2.7\tfar.example\tfar"] {
        assert!(hosts.lines().any(|is| is == line), "{hosts}");
    }
    assert_eq!(
        node.sh("names", "cat /etc/resolv.conf").await,
        "search hive.example\nnameserver 192.0.2.53\noptions ndots:3\n"
    );
    node.down().await;
}

#[tokio::test]
async fn volumes_are_shared_read_only_in_memory_and_in_part() {
    let node = Node::builder().up().await;
    let host = node.dir.join("host");
    fs::create_dir(&host).unwrap();
    fs::write(host.join("given"), "from the host").unwrap();
    let mounts = json!({"volumeMounts": [
        {"name": "shared", "mountPath": "/shared"},
        {"name": "shared", "mountPath": "/part", "subPath": "inner"},
        {"name": "memory", "mountPath": "/memory"},
        {"name": "host", "mountPath": "/host", "readOnly": true},
        {"name": "made", "mountPath": "/made"},
    ]});
    let manifest = yaml::pod("volumes")
        .container("one", STAY)
        .with(mounts.clone())
        .container("two", STAY)
        .with(mounts)
        .spec(json!({"volumes": [
            {"name": "shared", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "host", "hostPath": {"path": host, "type": "Directory"}},
            {"name": "made", "hostPath": {"path": node.dir.join("made"), "type": "DirectoryOrCreate"}},
        ]}));
    node.write("volumes.yaml", manifest);
    node.until_running("volumes").await;
    let one = async |script: &str| node.sh_in("volumes", Some("one"), script).await;
    let two = async |script: &str| node.sh_in("volumes", Some("two"), script).await;
    one("echo hello > /shared/file; echo part > /part/file; echo out > /made/file").await;
    assert_eq!(
        two("cat /shared/file /shared/inner/file /part/file").await,
        "hello\npart\npart\n"
    );
    assert_eq!(two("cat /host/given").await, "from the host");
    assert_eq!(
        one("touch /host/x 2>/dev/null || echo refused").await,
        "refused\n"
    );
    let memory = one("grep ' /memory ' /proc/mounts").await;
    assert!(memory.starts_with("tmpfs /memory tmpfs rw"), "{memory}");
    assert!(memory.contains("size=1024k"), "{memory}");
    assert_eq!(
        fs::read_to_string(node.dir.join("made/file")).unwrap(),
        "out\n"
    );

    node.remove_manifest("volumes.yaml");
    node.until_gone("volumes").await;
    assert_eq!(
        fs::read_to_string(node.dir.join("made/file")).unwrap(),
        "out\n"
    );
    assert_eq!(
        fs::read_to_string(host.join("given")).unwrap(),
        "from the host"
    );
    node.down().await;
}

#[tokio::test]
async fn a_host_port_leads_to_the_container() {
    let node = Node::builder().up().await;
    let port = 31000 + node.healthz_port % 1000;
    let manifest = yaml::pod("web")
        .container(
            "app",
            "mkdir -p /tmp/www; echo it is me > /tmp/www/index.html; httpd -p 8080 -h /tmp/www; \
             trap 'exit 0' TERM; sleep 100000 & wait",
        )
        .with(json!({"ports": [{"containerPort": 8080, "hostPort": port}]}));
    node.write("web.yaml", manifest);
    node.until_running("web").await;
    node.until_true(
        "the page is there",
        SOON,
        async || matches!(node.page_at(port, "/").await, Ok((200, text)) if text == "it is me\n"),
    )
    .await;
    node.remove_manifest("web.yaml");
    node.until_gone("web").await;
    assert!(node.page_at(port, "/").await.is_err());
    node.down().await;
}

#[tokio::test]
async fn namespaces_are_the_hosts_the_pods_or_the_containers_own() {
    let node = Node::builder().up().await;
    let host = yaml::pod("host")
        .spec(json!({"hostNetwork": true, "hostPID": true, "hostIPC": true}))
        .container("app", STAY);
    let shared = yaml::pod("shared")
        .spec(json!({"shareProcessNamespace": true}))
        .container("one", "exec sleep 54321")
        .container("two", STAY);
    let own = yaml::pod("own")
        .container("one", STAY)
        .container("two", STAY);
    node.write("host.yaml", host);
    node.write("shared.yaml", shared);
    node.write("own.yaml", own);
    for pod in ["host", "shared", "own"] {
        node.until_running(pod).await;
    }
    let inside = async |pod: &str, container: &str, kind: &str| {
        let script = format!("readlink /proc/self/ns/{kind}");
        node.sh_in(pod, Some(container), &script)
            .await
            .trim()
            .to_owned()
    };
    for kind in ["net", "pid", "ipc"] {
        let ours = fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
        let ours = ours.to_str().unwrap();
        let is_hosts =
            async |pod: &str, container: &str| inside(pod, container, kind).await == ours;
        assert!(is_hosts("host", "app").await, "{kind}");
        assert!(!is_hosts("shared", "one").await, "{kind}");
        assert!(!is_hosts("own", "one").await, "{kind}");
        let is_shared =
            async |pod: &str| inside(pod, "one", kind).await == inside(pod, "two", kind).await;
        assert!(is_shared("shared").await, "{kind}");
        assert_eq!(is_shared("own").await, kind != "pid", "{kind}");
    }
    let processes = node.sh_in("shared", Some("two"), "ps").await;
    assert!(processes.contains("sleep 54321"), "{processes}");
    node.down().await;
}

#[tokio::test]
async fn users_groups_capabilities_and_the_root_are_as_asked() {
    let node = Node::builder().up().await;
    let manifest = yaml::pod("who")
        .spec(json!({
            "securityContext": {"runAsUser": 1234, "runAsGroup": 2345, "fsGroup": 3456, "supplementalGroups": [4567]},
            "volumes": [{"name": "data", "emptyDir": {}}],
        }))
        .container("plain", STAY)
        .with(json!({
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            "securityContext": {
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": true,
                "allowPrivilegeEscalation": false,
            },
        }))
        .container("root", STAY)
        .with(json!({"securityContext": {"runAsUser": 0, "runAsGroup": 0, "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]}}}))
        .container("all", STAY)
        .with(json!({"securityContext": {"runAsUser": 0, "privileged": true}}));
    node.write("who.yaml", manifest);
    node.until_running("who").await;
    let plain = async |script: &str| node.sh_in("who", Some("plain"), script).await;
    let root = async |script: &str| node.sh_in("who", Some("root"), script).await;
    assert_eq!(plain("id -u; id -g").await, "1234\n2345\n");
    let groups = plain("id -G").await;
    for group in ["3456", "4567"] {
        assert!(groups.split_whitespace().any(|is| is == group), "{groups}");
    }
    assert_eq!(plain("touch /data/x; stat -c %g /data/x").await, "3456\n");
    assert_eq!(
        plain("touch /x 2>&1 || true").await,
        "touch: /x: Read-only file system\n"
    );
    let status = "grep -E '^(CapBnd|NoNewPrivs|Seccomp):' /proc/1/status | tr -d '\\t'";
    assert_eq!(
        plain(status).await,
        "CapBnd:0000000000000000\nNoNewPrivs:1\nSeccomp:0\n"
    );
    assert_eq!(
        root(status).await,
        "CapBnd:0000000000001000\nNoNewPrivs:0\nSeccomp:0\n"
    );
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let bound = own
        .lines()
        .find(|line| line.starts_with("CapBnd:"))
        .unwrap();
    let all = node
        .sh_in("who", Some("all"), "grep ^CapBnd: /proc/1/status")
        .await;
    assert_eq!(all.trim(), bound);
    node.down().await;
}

#[tokio::test]
async fn limits_and_requests_are_in_the_cgroups() {
    let node = Node::builder().up().await;
    let burstable = yaml::pod("burstable")
        .container("app", STAY)
        .with(json!({"resources": {
            "requests": {"cpu": "250m", "memory": "32Mi"},
            "limits": {"cpu": "500m", "memory": "64Mi"},
        }}));
    let guaranteed = yaml::pod("guaranteed")
        .container("app", STAY)
        .with(json!({"resources": {"limits": {"cpu": "100m", "memory": "48Mi"}}}));
    let best_effort = yaml::pod("besteffort").container("app", STAY);
    node.write("burstable.yaml", burstable);
    node.write("guaranteed.yaml", guaranteed);
    node.write("besteffort.yaml", best_effort);
    let own_adj = fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    let own_adj: i32 = own_adj.trim().parse().unwrap();
    for (pod, class, name) in [
        ("burstable", "burstable/", "Burstable"),
        ("guaranteed", "", "Guaranteed"),
        ("besteffort", "besteffort/", "BestEffort"),
    ] {
        node.until_running(pod).await;
        assert_eq!(node.status(pod).await.qos_class.as_deref(), Some(name));
        let dir = node.pod_cgroup(pod, class).await;
        let id = node.container_id(pod, "app").await;
        let is_v1 = fs::metadata("/sys/fs/cgroup/memory").is_ok();
        let read = |controller: &str, file: &str| {
            let top = if is_v1 {
                format!("/sys/fs/cgroup/{controller}/")
            } else {
                "/sys/fs/cgroup/".to_owned()
            };
            fs::read_to_string(format!("{top}{dir}/{file}"))
                .unwrap_or_else(|error| panic!("{top}{dir}/{file}: {error}"))
                .trim()
                .to_owned()
        };
        let (memory, quota) = match (pod, is_v1) {
            ("burstable", _) => (Some("67108864"), Some("50000")),
            ("guaranteed", _) => (Some("50331648"), Some("10000")),
            _ => (None, None),
        };
        if !is_v1 {
            if let Some(memory) = memory {
                assert_eq!(read("", "memory.max"), memory);
                assert_eq!(read("", &format!("{id}/memory.max")), memory);
            }
            continue;
        }
        for below in [String::new(), format!("{id}/")] {
            if let Some(memory) = memory {
                assert_eq!(
                    read("memory", &format!("{below}memory.limit_in_bytes")),
                    memory,
                    "{pod}"
                );
            }
            assert_eq!(
                read("cpu", &format!("{below}cpu.cfs_quota_us")),
                quota.unwrap_or("-1"),
                "{pod}"
            );
            let shares = match pod {
                "burstable" => "256",
                "guaranteed" => "102",
                _ => "2",
            };
            assert_eq!(read("cpu", &format!("{below}cpu.shares")), shares, "{pod}");
        }
        let pid = node.main_pid(pod, "app").await;
        let adj = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
        let adj: i32 = adj.trim().parse().unwrap();
        match pod {
            // A process without the right to lower it keeps its containers at its own.
            "guaranteed" => assert!(adj == -997 || adj == own_adj, "{adj}"),
            "burstable" => assert!((3..1000).contains(&adj), "{adj}"),
            _ => assert_eq!(adj, 1000),
        }
    }
    node.down().await;
}

#[tokio::test]
async fn a_pod_whose_sandbox_dies_gets_a_new_one() {
    let node = Node::builder().max_restart_period("1s").up().await;
    node.write("web.yaml", yaml::pod("web").container("app", STAY));
    node.until_running("web").await;
    let before = node.container_id("web", "app").await;
    let listed = node.client.list_pods().await.unwrap();
    let sandbox = listed[0].sandboxes[0].id.clone();
    let pause = node.client.sandbox_pid(&sandbox).await.unwrap().unwrap();
    crate::node::send(pause.try_into().unwrap(), rustix::process::Signal::KILL);
    let after = node
        .until("its container is a new one", SOON, |pods| {
            let status = pods.running("web", "app")?;
            let is_new = !status.container_id.as_ref()?.ends_with(before.as_str());
            is_new.then(|| status.clone())
        })
        .await;
    assert_eq!(after.restart_count, 1);
    let changed = node.until_event("web", "SandboxChanged").await;
    assert_eq!(
        changed.message,
        "Pod sandbox changed, it will be killed and re-created."
    );
    let listed = node.client.list_pods().await.unwrap();
    let ready: Vec<_> = listed[0]
        .sandboxes
        .iter()
        .filter(|sandbox| sandbox.is_ready)
        .collect();
    assert_eq!(ready.len(), 1);
    assert_ne!(ready[0].id, sandbox);
    assert_eq!(node.relist().await.missed, Vec::<String>::new());
    node.down().await;
}
