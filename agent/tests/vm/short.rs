//! What matters most, in a few minutes under emulation.

use rustix::process::Signal;
use serde_json::json;

use crate::{
    files::{Cgroup, pod},
    node::{Node, SOON, yaml::STAY},
};

const FILES: [&str; 5] = [
    "cpu.weight",
    "cpu.max",
    "memory.max",
    "memory.oom.group",
    "pids.max",
];

#[tokio::test(flavor = "multi_thread")]
#[ignore = "in a machine of its own: cargo xtask vm"]
async fn a_kill_and_a_memory_kill_are_told_by_the_kernel() {
    let node = Node::builder().max_restart_period("1s").up().await;
    node.write("lasting", pod("lasting").container("app", STAY));
    node.until_running("lasting").await;
    println!("the pod runs");
    let (status, page) = node.page("/readyz?verbose").await;
    assert_eq!(status, 200);
    assert!(page.contains("mode kernel"), "{page}");

    node.kill_main("lasting", "app", Signal::KILL).await;
    let died = node.until_event("lasting", "Died").await;
    assert_eq!(died.message, "exit code 137 (signal 9), Error");
    assert!(died.kernel_at.is_some(), "{died:?}");
    println!("its kill is told");
    node.until("it runs again", SOON, |pods| {
        (pods.running("lasting", "app")?.restart_count == 1).then_some(())
    })
    .await;

    println!("it runs again");
    let hog = pod("hog")
        .container("app", "exec memhog 256 60")
        .with(json!({"resources": {"limits": {"memory": "32Mi"}}}));
    node.write("hog", hog);
    let end = node
        .until("it was killed twice", SOON, |pods| {
            let status = pods.container("hog", "app")?;
            (status.restart_count >= 2).then(|| pods.last_end("hog", "app").cloned())?
        })
        .await;
    let told = (end.exit_code, end.reason.as_deref());
    assert_eq!(told, (137, Some("OOMKilled")));
    let told = node.until_event("hog", "OomKilled").await;
    let limit = "the container's limit of 32Mi was hit";
    assert!(told.message.ends_with(limit), "{}", told.message);
    assert!(told.kernel_at.is_some(), "{told:?}");
    println!("a memory kill is told");

    assert_eq!(node.relist().await.missed, Vec::<String>::new());
    assert_eq!(node.metric("skep_exit_mismatch_total", &[]).await, 0.0);
    node.down().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "in a machine of its own: cargo xtask vm"]
async fn limits_are_written_as_upstream_writes_them() {
    let node = Node::builder().up().await;
    let amounts = json!({"cpu": "500m", "memory": "64Mi"});
    let guaranteed = pod("guaranteed")
        .container("app", STAY)
        .with(json!({"resources": {"requests": amounts, "limits": amounts}}));
    node.write("guaranteed", guaranteed);
    let resources = json!({"requests": {"cpu": "250m"}, "limits": {"memory": "48Mi"}});
    let burstable = pod("burstable")
        .container("app", STAY)
        .with(json!({"resources": resources}));
    node.write("burstable", burstable);
    node.write("best", pod("best").container("app", STAY));
    for pod in ["guaranteed", "burstable", "best"] {
        node.until_running(pod).await;
    }

    // Weights of pods and classes: upstream's own line; of containers: the runtime's curve.
    for (pod, class, of_pod, of_container) in [
        (
            "guaranteed",
            "",
            ["20", "50000 100000", "67108864", "0", "max"],
            ["59", "50000 100000", "67108864", "1", "max"],
        ),
        (
            "burstable",
            "burstable/",
            ["10", "max 100000", "50331648", "0", "max"],
            ["35", "max 100000", "50331648", "1", "max"],
        ),
        (
            "best",
            "besteffort/",
            ["1", "max 100000", "max", "0", "max"],
            ["1", "max 100000", "max", "1", "max"],
        ),
    ] {
        let cgroup = Cgroup::new(&node.pod_cgroup(pod, class).await);
        assert_eq!(cgroup.read(FILES), of_pod, "the pod {pod}");
        let cgroup = Cgroup::of(&node, pod, class, "app").await;
        assert_eq!(cgroup.read(FILES), of_container, "the container of {pod}");
    }
    for (class, weight) in [("burstable", "10"), ("besteffort", "1")] {
        let cgroup = Cgroup::new(&format!("{}/kubepods/{class}", node.cgroup));
        let expected = [weight, "max 100000", "max", "0", "max"];
        assert_eq!(cgroup.read(FILES), expected, "the class {class}");
    }
    node.down().await;
}
