//! A containerd that is not the agent's stands still for a minute.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::{
    figures::Times,
    look,
    node::{Node, send, yaml},
};

const PODS: usize = 5;
const PAUSE: Duration = Duration::from_secs(60);
/// By then `/readyz` says what is wrong.
const NOTICE: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a long run: cargo xtask accept pause"]
async fn the_agent_answers_while_the_runtime_stands_still() {
    let node = Node::builder()
        .max_restart_period("1s")
        .external_containerd()
        .up()
        .await;
    let names: Vec<String> = (0..PODS).map(|n| format!("pause-{n}")).collect();
    for name in &names {
        node.write(name, yaml::pod(name).container("main", look::LASTING));
    }
    node.until("all pods run", LIMIT, |pods| look::all_run(pods, &names))
        .await;
    let pid = node.main_pid("pause-0", "main").await;

    node.pause_runtime().await;
    let began = Instant::now();
    send(pid, Signal::KILL);
    node.write("new", yaml::pod("new").container("main", look::LASTING));
    let noticing = async {
        loop {
            let (ready, why) = node.page("/readyz").await;
            if ready != 200 {
                return (began.elapsed(), why);
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    let (noticed, (pages, commands)) = tokio::join!(noticing, ask(&node, began));
    let (took, why) = noticed;
    println!(
        "/readyz after {:.1} s: {}",
        took.as_secs_f64(),
        why.trim_end()
    );
    assert!(took < NOTICE, "{took:?}");
    let expected = "[-]runtime failed: container runtime is down";
    assert!(why.contains(expected), "{why}");
    sleep_until(began + PAUSE).await;
    pages.print("/healthz and /readyz together");
    commands.print("commands");

    node.resume_runtime().await;
    let began = Instant::now();
    node.until_ready().await;
    let took = began.elapsed().as_secs_f64();
    println!("ready {took:.1} s after the runtime went on");
    node.until("all run again", LIMIT, |pods| {
        look::all_run(pods, &names)?;
        pods.all_run("new")?;
        let status = pods.running("pause-0", "main")?;
        (status.restart_count == 1).then_some(())
    })
    .await;
    let took = began.elapsed().as_secs_f64();
    println!("all pods as they should be {took:.1} s after the runtime went on");
    let pods = node.pods().await;
    for name in &names[1..] {
        let status = pods.running(name, "main").expect("it runs");
        assert_eq!(status.restart_count, 0, "{name}");
    }
    assert_eq!(node.metric("skep_exit_mismatch_total", &[]).await, 0.0);
    node.down().await;
}

/// Asks all that can be asked, over and over while the pause lasts.
async fn ask(node: &Node, began: Instant) -> (Times, Times) {
    let (mut pages, mut commands) = (Times::default(), Times::default());
    while began.elapsed() < PAUSE {
        let asked = Instant::now();
        let (health, text) = node.page("/healthz").await;
        assert_eq!((health, text.as_str()), (200, "ok"));
        let (ready, why) = node.page("/readyz").await;
        pages.add(asked.elapsed());
        assert!(asked < began + NOTICE || ready == 500, "{why}");
        for command in [
            &["pods"][..],
            &["status"],
            &["events"],
            &["logs", "pause-1-node"],
        ] {
            let asked = Instant::now();
            let output = timeout(Duration::from_secs(15), node.skep(command)).await;
            let output = output.unwrap_or_else(|_| panic!("{command:?} does not answer"));
            commands.add(asked.elapsed());
            // `status` tells by its code that the agent is not ready.
            let is_status = command == ["status"];
            let is_well = output.status.success() || is_status;
            assert!(is_well, "{command:?}: {output:?}");
        }
        sleep(Duration::from_millis(500)).await;
    }
    (pages, commands)
}
