//! 250 one-shot containers end at once while the agent is stopped and its ring holds one page.

use std::{
    fs::{self, OpenOptions},
    time::Duration,
};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    look,
    node::{Node, is_alive, yaml},
};

const PODS: usize = 25;
const EACH: usize = 10;
const START_LIMIT: Duration = Duration::from_secs(600);
const LIMIT: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a long run: cargo xtask accept storm"]
async fn all_codes_are_right_of_250_exits_that_the_ring_could_not_hold() {
    let node = Node::builder().ring_bytes(4096).up().await;
    let folder = node.dir.join("gate");
    fs::create_dir(&folder).unwrap();
    // Whoever opens it to read waits for the first that opens it to write.
    let gate = folder.join("go");
    mknodat(CWD, &gate, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();

    let began = Instant::now();
    let names: Vec<String> = (0..PODS).map(|n| format!("storm-{n:02}")).collect();
    for (at, name) in names.iter().enumerate() {
        let mut pod = yaml::pod(name);
        for each in 0..EACH {
            let script = format!("read go < /host/go; exit {}", code(at, each));
            let mount = json!({"volumeMounts": [{"name": "host", "mountPath": "/host"}]});
            pod = pod.container(&format!("c{each}"), &script).with(mount);
        }
        let volumes = json!([{"name": "host", "hostPath": {"path": folder}}]);
        let spec = json!({"restartPolicy": "Never", "volumes": volumes});
        node.write(name, pod.spec(spec));
    }
    node.until("all containers run", START_LIMIT, |pods| {
        look::all_run(pods, &names)
    })
    .await;
    let took = began.elapsed().as_secs_f64();
    println!("{} containers running after {took:.1} s", PODS * EACH);
    let pods = node.pods().await;
    let mut pids: Vec<i32> = Vec::new();
    for name in &names {
        for each in 0..EACH {
            let status = pods.running(name, &format!("c{each}")).expect("it runs");
            let pid = node.client.container_pid(&look::id(status)).await.unwrap();
            pids.push(pid.expect("it runs").try_into().unwrap());
        }
    }
    let gaps_before = node.metric("skep_pleg_gaps_total", &[]).await;

    node.pause_agent();
    drop(OpenOptions::new().write(true).open(&gate).unwrap());
    let began = Instant::now();
    node.until_true("all processes have ended", LIMIT, async || {
        !pids.iter().any(|pid| is_alive(*pid))
    })
    .await;
    let took = began.elapsed().as_secs_f64();
    println!("all ended within {took:.2} s, the agent stopped");
    node.resume_agent();
    let began = Instant::now();
    node.until("all pods have failed", LIMIT, |pods| {
        let failed = names
            .iter()
            .filter(|name| pods.phase(name) == Some("Failed"));
        (failed.count() == PODS).then_some(())
    })
    .await;
    let took = began.elapsed().as_secs_f64();
    println!("all pods Failed {took:.2} s after the agent went on");

    let pods = node.pods().await;
    for (at, name) in names.iter().enumerate() {
        for each in 0..EACH {
            let container = format!("c{each}");
            let end = pods.terminated(name, &container).expect("it has ended");
            let told = (end.exit_code, end.reason.as_deref());
            assert_eq!(
                told,
                (code(at, each), Some("Error")),
                "{container} of {name}"
            );
            let status = pods.container(name, &container).expect("it is there");
            assert_eq!(status.restart_count, 0, "{container} of {name}");
        }
    }
    let gaps = node.metric("skep_pleg_gaps_total", &[]).await - gaps_before;
    let lost = node.metric("skep_kernel_events_lost_total", &[]).await;
    println!(
        "gaps: {gaps}, events lost: {lost}, right codes: {}",
        PODS * EACH
    );
    assert!(gaps >= 1.0, "nothing was lost: the run shows nothing");
    assert_eq!(node.metric("skep_exit_mismatch_total", &[]).await, 0.0);
    let listing = node.relist().await;
    assert_eq!(listing.missed, Vec::<String>::new());
    node.down().await;
}

/// 1 to 250.
fn code(pod: usize, container: usize) -> i32 {
    i32::try_from(pod * EACH + container + 1).expect("a small number")
}
