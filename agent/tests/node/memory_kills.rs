//! Memory kills, as several tests bring them about: many of main processes, and one of a child.

use std::{fs, time::Duration};

use agent::types::timeline::Entry;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Node, SOON,
    yaml::{Manifest, STAY},
};

/// Of a container's memory: too little for `memhog 256`.
pub(crate) fn limit() -> Value {
    json!({"resources": {"limits": {"memory": "32Mi"}}})
}

/// A load of kills of main processes, spread evenly over some pods.
#[derive(Debug)]
pub(crate) struct MemoryKills {
    pub(crate) kills: usize,
    pub(crate) pods: usize,
    /// Makes a pod of that name, without containers.
    pub(crate) pod: fn(&str) -> Manifest,
    /// For all of them.
    pub(crate) patience: Duration,
}

impl MemoryKills {
    /// Brings all of them about; each must then be told as one, with its reason.
    pub(crate) async fn run(&self, node: &Node) {
        let began = Instant::now();
        let names: Vec<String> = (0..self.pods).map(|n| format!("oom-{n}")).collect();
        self.write(node, &names);
        self.until_all_wait(node, &names).await;
        let took = began.elapsed().as_secs_f64();
        println!("{} memory kills in {took:.1} s", self.kills);
        self.check_statuses(node, &names).await;
        self.check_timeline(node).await;
        let corrected = node.metric("skep_oom_reason_corrected_total", &[]).await;
        println!("the runtime gave another reason: {corrected} times");
        nothing_was_missed(node).await;
    }

    /// Of each pod.
    fn each(&self) -> i32 {
        i32::try_from(self.kills / self.pods).unwrap()
    }

    fn write(&self, node: &Node, names: &[String]) {
        let each = self.each();
        let folder = node.dir.join("counts");
        fs::create_dir(&folder).unwrap();
        let volumes = json!({"volumes": [{"name": "host", "hostPath": {"path": folder}}]});
        let mounts = json!({"volumeMounts": [{"name": "host", "mountPath": "/host"}]});
        for name in names {
            // A byte of the pod's file for each start; after the last kill it only waits.
            let script = format!(
                "n=$(cat /host/{name} 2>/dev/null); [ ${{#n}} -lt {each} ] || {{ {STAY}; }}; \
                 printf x >> /host/{name}; exec memhog 256"
            );
            let pod = (self.pod)(name).container("main", &script);
            let pod = pod.with(limit()).with(mounts.clone());
            node.write(name, pod.spec(volumes.clone()));
        }
    }

    async fn until_all_wait(&self, node: &Node, names: &[String]) {
        let each = self.each();
        let mut shown = 0;
        node.until("each was killed so often", self.patience, |pods| {
            let containers = names.iter().filter_map(|name| pods.container(name, "main"));
            let kills: i32 = containers.map(|status| status.restart_count).sum();
            // An emulated machine takes minutes: this tells it from one that is stuck.
            if kills >= shown + 10 {
                println!("{kills} kills");
                shown = kills;
            }
            let waiting = names
                .iter()
                .filter_map(|name| pods.running(name, "main"))
                .filter(|status| status.restart_count >= each);
            (waiting.count() == self.pods).then_some(())
        })
        .await;
    }

    async fn check_statuses(&self, node: &Node, names: &[String]) {
        let pods = node.pods().await;
        for name in names {
            let status = pods.running(name, "main").expect("it waits");
            assert_eq!(status.restart_count, self.each(), "{name}");
            let end = pods.last_end(name, "main").expect("it was killed");
            let told = (end.exit_code, end.reason.as_deref());
            assert_eq!(told, (137, Some("OOMKilled")), "{name}");
        }
    }

    async fn check_timeline(&self, node: &Node) {
        let events = node.events().await;
        let ends: Vec<_> = events
            .iter()
            .filter(|entry| entry.message.starts_with("exit code"))
            .collect();
        for end in &ends {
            assert_eq!(end.message, "exit code 137 (signal 9), OOMKilled");
            assert!(end.kernel_at.is_some(), "{end:?}");
        }
        println!("told as OOMKilled: {}", ends.len());
        assert_eq!(ends.len(), self.kills);
    }
}

/// A listing finds no news, and the runtime has recorded no other ends than the kernel told.
pub(crate) async fn nothing_was_missed(node: &Node) {
    assert_eq!(node.relist().await.missed, Vec::<String>::new());
    assert_eq!(node.metric("skep_exit_mismatch_total", &[]).await, 0.0);
}

/// Gives the pod a container `app`, whose shell goes on after a child of it was killed, if the
/// kernel lets it.
pub(crate) fn with_killed_child(pod: Manifest) -> Manifest {
    let script = format!("memhog 256 60; echo child ended with $?; {STAY}");
    pod.container("app", &script).with(limit())
}

/// Waits until that child's kill is told with its limit, and the container goes on; what was told.
/// There must have been no other such kill on the node.
pub(crate) async fn until_killed_child_is_told(node: &Node, pod: &str) -> Entry {
    let told = node.until_event(pod, "ChildOomKilled").await;
    let victim = "(memhog) of container \"app\"";
    assert!(told.message.contains(victim), "{}", told.message);
    let hit = "the container's limit of 32Mi was hit";
    assert!(told.message.ends_with(hit), "{}", told.message);
    node.until_true("the container goes on", SOON, async || {
        let output = node.skep(&["logs", pod]).await;
        String::from_utf8_lossy(&output.stdout).contains("child ended with 137")
    })
    .await;
    let status = node.container(pod, "app").await;
    assert_eq!(status.restart_count, 0);
    assert!(status.state.unwrap().running.is_some());
    let kills = node
        .metric("skep_child_oom_kills_total", &[("limit", "container")])
        .await;
    assert_eq!(kills, 1.0);
    told
}
