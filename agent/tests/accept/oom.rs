//! 200 memory kills of main processes, and one of a child.

use std::{fs, time::Duration};

use serde_json::json;
use tokio::time::Instant;

use crate::{
    look,
    node::{Node, yaml},
};

const PODS: usize = 10;
const EACH: i32 = 20;
const KILLS: usize = 200;
const LIMIT: Duration = Duration::from_secs(360);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a long run: cargo xtask accept oom"]
async fn each_of_200_memory_kills_is_told_as_one() {
    let node = Node::builder().max_restart_period("1s").up().await;
    let folder = node.dir.join("counts");
    fs::create_dir(&folder).unwrap();
    let began = Instant::now();
    let names: Vec<String> = (0..PODS).map(|n| format!("oom-{n:02}")).collect();
    for name in &names {
        // A byte of the pod's file for each start; after the last kill it only waits.
        let script = format!(
            "n=$(cat /host/{name} 2>/dev/null); [ ${{#n}} -lt {EACH} ] || {{ {}; }}; \
             printf x >> /host/{name}; exec memhog 256",
            look::LASTING
        );
        let mounts = json!([{"name": "host", "mountPath": "/host"}]);
        let limit = json!({"resources": limit(), "volumeMounts": mounts});
        let volumes = json!([{"name": "host", "hostPath": {"path": folder}}]);
        let pod = yaml::pod(name).container("main", &script).with(limit);
        node.write(name, pod.spec(json!({"volumes": volumes})));
    }
    node.until("each was killed so often", LIMIT, |pods| {
        let waiting = names
            .iter()
            .filter_map(|name| pods.running(name, "main"))
            .filter(|status| status.restart_count >= EACH);
        (waiting.count() == PODS).then_some(())
    })
    .await;
    let took = began.elapsed().as_secs_f64();
    println!("{KILLS} memory kills in {took:.1} s");

    let pods = node.pods().await;
    for name in &names {
        let status = pods.running(name, "main").expect("it waits");
        assert_eq!(status.restart_count, EACH, "{name}");
        let end = pods.last_end(name, "main").expect("it was killed");
        let told = (end.exit_code, end.reason.as_deref());
        assert_eq!(told, (137, Some("OOMKilled")), "{name}");
    }
    let events = node.events().await;
    let ends: Vec<_> = events
        .iter()
        .filter(|entry| entry.message.starts_with("exit code"))
        .collect();
    for end in &ends {
        assert_eq!(end.message, "exit code 137 (signal 9), OOMKilled");
    }
    println!("told as OOMKilled: {}", ends.len());
    assert_eq!(ends.len(), KILLS);
    let counted = async |name, limit| node.metric(name, &[("limit", limit)]).await;
    let of_container = counted("skep_main_oom_kills_total", "container").await;
    // The pod has the same limit: told so where the container's cgroup went before it was read.
    let of_pod = counted("skep_main_oom_kills_total", "pod").await;
    println!("counted by limit: container {of_container}, pod {of_pod}");
    assert_eq!(of_container + of_pod, KILLS as f64);
    let corrected = node.metric("skep_oom_reason_corrected_total", &[]).await;
    println!("the runtime gave another reason: {corrected} times");

    let script = format!("memhog 256 & wait $!; {}", look::LASTING);
    let pod = yaml::pod("child").container("main", &script);
    node.write("child", pod.with(json!({"resources": limit()})));
    let told = node.until_event("child", "ChildOomKilled").await;
    println!("the child's event: {}", told.message);
    assert!(told.message.contains("(memhog)"), "{told:?}");
    assert!(told.message.contains("32"), "its limit is told: {told:?}");
    assert_eq!(
        counted("skep_child_oom_kills_total", "container").await,
        1.0
    );

    let listing = node.relist().await;
    assert_eq!(listing.missed, Vec::<String>::new());
    let pods = node.pods().await;
    let status = pods.running("child", "main").expect("it goes on");
    assert_eq!(status.restart_count, 0);
    assert_eq!(node.metric("skep_exit_mismatch_total", &[]).await, 0.0);
    node.down().await;
}

fn limit() -> serde_json::Value {
    json!({"limits": {"memory": "32Mi"}})
}
