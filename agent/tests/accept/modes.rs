//! The same behaviour in each of the PLEG's modes, and the ways from one mode to a worse one and
//! back.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tokio::time::Instant;

use crate::{
    look,
    node::{Node, yaml},
    proxy::Proxy,
    without_bpf,
};

const LIMIT: Duration = Duration::from_secs(90);

/// What holds in every mode.
async fn check_behaviour(node: &Node, mode: &str) {
    // Names of its own: a pod that comes back by its name goes on with its counts.
    let named = |name: &str| format!("{name}-{}", mode.replace([',', ' '], ""));
    let chain = &*named("chain");
    let began = Instant::now();
    // A chain, side by side with a container that lasts.
    let pod = yaml::pod(chain)
        .init("first", "echo first >> /data/order")
        .with(mount())
        .init("second", "echo second >> /data/order")
        .with(mount())
        .sidecar("beside", look::LASTING)
        .container("main", &format!("cat /data/order; {}", look::LASTING))
        .with(mount());
    let volumes = json!([{"name": "data", "emptyDir": {}}]);
    node.write(chain, pod.spec(json!({"volumes": volumes})));
    node.until("the chain runs", LIMIT, |pods| pods.all_run(chain))
        .await;
    assert_eq!(node.sh(chain, "cat /data/order").await, "first\nsecond\n");

    node.kill_main(chain, "main", Signal::KILL).await;
    node.until("it runs again", LIMIT, |pods| {
        (pods.running(chain, "main")?.restart_count == 1).then_some(())
    })
    .await;
    let pods = node.pods().await;
    let end = pods.last_end(chain, "main").expect("it was killed");
    assert_eq!((end.exit_code, end.reason.as_deref()), (137, Some("Error")));
    let beside = pods.running(chain, "beside").expect("it lasts");
    assert_eq!(beside.restart_count, 0);

    // Ends in each way.
    let once = |name: &str, script: &str| {
        let pod = yaml::pod(&named(name)).spec(json!({"restartPolicy": "Never"}));
        pod.container("main", script)
    };
    node.write(&named("good"), once("good", "exit 0"));
    node.write(&named("bad"), once("bad", "exit 7"));
    let limit = json!({"resources": {"limits": {"memory": "32Mi"}}});
    node.write(&named("hog"), once("hog", "exec memhog 256").with(limit));
    for (name, phase, code, reason) in [
        ("good", "Succeeded", 0, "Completed"),
        ("bad", "Failed", 7, "Error"),
        ("hog", "Failed", 137, "OOMKilled"),
    ] {
        let name = &*named(name);
        let end = node
            .until(&format!("{name} is {phase}"), LIMIT, |pods| {
                let end = pods.terminated(name, "main")?;
                (pods.phase(name) == Some(phase)).then(|| end.clone())
            })
            .await;
        let told = (end.exit_code, end.reason.as_deref());
        assert_eq!(told, (code, Some(reason)), "{name}");
    }

    // A container that someone removed behind the agent's back is replaced.
    let id = node.container_id(chain, "main").await;
    node.client
        .stop_container(&id, Duration::ZERO)
        .await
        .unwrap();
    node.until("it was replaced", LIMIT, |pods| {
        let status = pods.running(chain, "main")?;
        (look::id(status) != id).then_some(())
    })
    .await;

    for name in ["chain", "good", "bad", "hog"] {
        let name = &*named(name);
        node.remove_manifest(name);
        node.until(&format!("{name} is gone"), LIMIT, |pods| {
            pods.pod(name).is_none().then_some(())
        })
        .await;
    }
    let listing = node.relist().await;
    assert_eq!(listing.missed, Vec::<String>::new());
    assert_eq!(node.metric("skep_pleg_missed_total", &[]).await, 0.0);
    assert_eq!(node.metric("skep_exit_mismatch_total", &[]).await, 0.0);
    let took = began.elapsed().as_secs_f64();
    println!("{mode}: the same behaviour, {took:.1} s");
}

fn mount() -> serde_json::Value {
    json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]})
}

/// By the gauge, by `/readyz?verbose` and by the log; which also give the reason.
async fn check_told(node: &Node, mode: &str, reason: &str) {
    for other in ["kernel", "stream", "listing"] {
        let expected = if other == mode { 1.0 } else { 0.0 };
        let told = node.metric("skep_pleg_mode", &[("mode", other)]).await;
        assert_eq!(told, expected, "{other}");
    }
    let (ready, text) = node.page("/readyz?verbose").await;
    assert_eq!(ready, 200, "{text}");
    let line = text.lines().find(|line| line.contains("mode "));
    let line = line.unwrap_or_else(|| panic!("no mode in {text}"));
    println!("{line}");
    assert!(
        line.contains(&format!("mode {mode}; ")) && line.contains(reason),
        "{line}"
    );
    let log = node.log();
    let mut told = log.lines().filter(|line| line.contains("The PLEG's mode"));
    let told = told
        .next_back()
        .unwrap_or_else(|| panic!("no mode in the log"));
    assert!(told.contains(mode) && told.contains(reason), "{told}");
    let events = node.events().await;
    let told = events.iter().rfind(|entry| entry.reason == "Mode");
    let told = told.expect("the timeline has the mode");
    assert!(
        told.message.starts_with(&format!("PLEG mode {mode}: ")),
        "{told:?}"
    );
}

async fn until_mode(node: &Node, mode: &str) {
    node.until_true(&format!("mode {mode}"), LIMIT, async || {
        node.metric("skep_pleg_mode", &[("mode", mode)]).await == 1.0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a long run: cargo xtask accept modes"]
async fn each_mode_shows_the_same_behaviour() {
    for (mode, reason) in [
        ("kernel", "kernel events: attached"),
        ("stream", "kernel events: not wanted"),
        ("listing", "runtime's event stream: not wanted"),
    ] {
        let node = Node::builder()
            .mode(mode)
            .max_restart_period("1s")
            .up()
            .await;
        // The stream is up a moment after the agent is ready.
        until_mode(&node, mode).await;
        check_told(&node, mode, reason).await;
        check_behaviour(&node, mode).await;
        check_told(&node, mode, reason).await;
        node.down().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a long run: cargo xtask accept modes"]
async fn an_agent_that_may_not_use_bpf_takes_the_stream_and_says_so() {
    let node = Node::builder()
        .max_restart_period("1s")
        .external_containerd()
        .launcher(without_bpf::command)
        .up()
        .await;
    until_mode(&node, "stream").await;
    check_told(&node, "stream", "the bpf system call is not permitted").await;
    let (_, text) = node.page("/readyz?verbose").await;
    assert!(text.contains("[!]pleg degraded"), "{text}");
    check_behaviour(&node, "stream, bpf refused").await;
    node.down().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a long run: cargo xtask accept modes"]
async fn a_broken_stream_leads_to_listings_and_back() {
    let mut node = Node::builder()
        .mode("stream")
        .max_restart_period("1s")
        .behind_proxy()
        .prepare()
        .await;
    node.start_runtime().await;
    let runtime = node.runtime_settings().dir.join("containerd.sock");
    let proxy = Proxy::start(&node.proxy_socket(), &runtime);
    node.start_agent_again().await;
    until_mode(&node, "stream").await;
    node.write("kept", yaml::pod("kept").container("main", look::LASTING));
    node.until_running("kept").await;

    proxy.cut_events();
    let began = Instant::now();
    until_mode(&node, "listing").await;
    println!(
        "listing {:.2} s after the stream broke",
        began.elapsed().as_secs_f64()
    );
    check_told(&node, "listing", "runtime's event stream: ").await;
    let (_, text) = node.page("/readyz?verbose").await;
    assert!(text.contains("[!]pleg degraded"), "{text}");
    check_behaviour(&node, "listing, stream broken").await;

    proxy.mend_events();
    let began = Instant::now();
    until_mode(&node, "stream").await;
    println!(
        "stream {:.2} s after it could be had again",
        began.elapsed().as_secs_f64()
    );
    check_told(&node, "stream", "runtime's event stream: connected").await;
    check_behaviour(&node, "stream, mended").await;
    let status = node.container("kept", "main").await;
    assert_eq!(status.restart_count, 0);
    node.down().await;
}
