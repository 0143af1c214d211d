//! The agent ends and starts again; the pods go on.

use rustix::process::Signal;
use serde_json::json;

use crate::node::{
    Node, SOON,
    yaml::{self, STAY},
};

#[rstest::rstest]
#[case::told_to_stop(false)]
#[case::killed(true)]
#[tokio::test]
async fn containers_and_counts_survive_the_agents_end(#[case] is_killed: bool) {
    let mut node = Node::builder().max_restart_period("1s").up().await;
    node.write(
        "web.yaml",
        yaml::pod("web")
            .init("prepare", "true")
            .container("app", STAY),
    );
    node.write(
        "done.yaml",
        yaml::pod("done")
            .spec(json!({"restartPolicy": "Never"}))
            .container("app", "exit 5"),
    );
    node.until_running("web").await;
    node.kill_main("web", "app", Signal::KILL).await;
    node.until("it runs again", SOON, |pods| {
        (pods.running("web", "app")?.restart_count == 1).then_some(())
    })
    .await;
    node.until("the job failed", SOON, |pods| {
        (pods.phase("done") == Some("Failed")).then_some(())
    })
    .await;
    let before = node.container("web", "app").await;
    let pid = node.main_pid("web", "app").await;
    for _ in 0..2 {
        if is_killed {
            node.kill_agent().await;
        } else {
            node.stop_agent().await;
        }
        node.start_agent_again().await;
        node.until_running("web").await;
        let after = node.container("web", "app").await;
        assert_eq!(after.container_id, before.container_id);
        assert_eq!(after.restart_count, 1);
        assert_eq!(after.last_state, before.last_state);
        assert_eq!(node.main_pid("web", "app").await, pid);
        let end = node
            .until("the job is known", SOON, |pods| {
                (pods.phase("done") == Some("Failed"))
                    .then(|| pods.terminated("done", "app").cloned())?
            })
            .await;
        assert_eq!(end.exit_code, 5);
        assert_eq!(node.container("done", "app").await.restart_count, 0);
    }
    node.down().await;
}

#[tokio::test]
async fn what_happened_while_no_agent_ran_is_handled_once() {
    let mut node = Node::builder().max_restart_period("1s").up().await;
    node.write("killed.yaml", yaml::pod("killed").container("app", STAY));
    node.write("removed.yaml", yaml::pod("removed").container("app", STAY));
    node.until_running("killed").await;
    node.until_running("removed").await;
    let pid = node.main_pid("killed", "app").await;
    node.kill_agent().await;
    crate::node::send(pid, Signal::KILL);
    node.remove_manifest("removed.yaml");
    node.write("added.yaml", yaml::pod("added").container("app", STAY));
    node.start_agent_again().await;
    let end = node
        .until("it runs again", SOON, |pods| {
            (pods.running("killed", "app")?.restart_count == 1)
                .then(|| pods.last_end("killed", "app").cloned())?
        })
        .await;
    assert_eq!(end.exit_code, 137);
    node.until_running("added").await;
    node.until_gone("removed").await;
    let running = async |name: &str| {
        let pods = node.client.list_pods().await.unwrap();
        pods.iter()
            .filter(|pod| *pod.key.name == *name)
            .flat_map(|pod| &pod.containers)
            .filter(|container| container.state == agent::cri::ListedState::Running)
            .count()
    };
    node.until_true("nothing of the removed pod runs", SOON, async || {
        running("removed-node").await == 0
    })
    .await;
    assert_eq!(running("killed-node").await, 1);
    assert_eq!(node.container("killed", "app").await.restart_count, 1);
    node.down().await;
}

#[tokio::test]
async fn down_works_without_an_agent() {
    let mut node = Node::builder().up().await;
    node.write("web.yaml", yaml::pod("web").container("app", STAY));
    node.until_running("web").await;
    node.kill_agent().await;
    let output = node.skep(&["down"]).await;
    let said = crate::node::printed(&output);
    assert!(said.contains("pod default/web-node stopped"), "{said}");
    node.down().await;
}
