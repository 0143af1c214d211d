//! 200 memory kills of main processes, and one of a child.

use std::time::Duration;

use crate::node::{
    Node,
    memory_kills::{
        MemoryKills, nothing_was_missed, until_killed_child_is_told, with_killed_child,
    },
    yaml,
};

const KILLS: usize = 200;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a long run: cargo xtask accept oom"]
async fn each_of_200_memory_kills_is_told_as_one() {
    let node = Node::builder().max_restart_period("1s").up().await;
    let load = MemoryKills {
        kills: KILLS,
        pods: 10,
        pod: yaml::pod,
        patience: Duration::from_secs(360),
    };
    load.run(&node).await;
    let counted = async |limit| {
        let labels = [("limit", limit)];
        node.metric("skep_main_oom_kills_total", &labels).await
    };
    let of_container = counted("container").await;
    // The pod has the same limit: told so where the container's cgroup went before it was read.
    let of_pod = counted("pod").await;
    println!("counted by limit: container {of_container}, pod {of_pod}");
    assert_eq!(of_container + of_pod, KILLS as f64);

    node.write("child", with_killed_child(yaml::pod("child")));
    let told = until_killed_child_is_told(&node, "child").await;
    println!("the child's event: {}", told.message);
    nothing_was_missed(&node).await;
    node.down().await;
}
