//! Containers' logs on disk.

use std::{fs, io::Read as _, path::Path};

use serde_json::json;

use crate::node::{Node, SOON, yaml};

/// The whole log of a container: its rotated files, oldest first, and the current one.
fn whole(dir: &Path) -> String {
    let mut files: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "0.log")
        .collect();
    // They are named by their time.
    files.sort();
    files.push("0.log".to_owned());
    let mut all = String::new();
    for name in files {
        let bytes = fs::read(dir.join(&name)).unwrap();
        if name.ends_with(".gz") {
            let mut unpacked = flate2::read::GzDecoder::new(&*bytes);
            unpacked.read_to_string(&mut all).unwrap();
        } else {
            all.push_str(&String::from_utf8(bytes).unwrap());
        }
    }
    all
}

#[tokio::test]
async fn a_log_is_rotated_while_it_is_written_and_loses_no_line() {
    const LINES: usize = 4000;
    let node = Node::builder()
        .run()
        .config(json!({
            "containerLogMaxSize": "8Ki",
            "containerLogMaxFiles": 20,
            "containerLogMonitorInterval": "3s",
        }))
        .up()
        .await;
    let script = format!(
        "trap 'exit 0' TERM; i=0; while [ $i -lt {LINES} ]; do echo line $i; i=$((i+1)); \
         [ $((i % 4)) -gt 0 ] || usleep 8000; done; sleep 100000 & wait"
    );
    node.write("talk.yaml", yaml::pod("talk").container("app", &script));
    node.until_running("talk").await;
    let pods = node.pods().await;
    let uid = pods
        .pod("talk")
        .unwrap()
        .object
        .metadata
        .uid
        .clone()
        .unwrap();
    let dir = node
        .root
        .join(format!("log/pods/default_talk-node_{uid}/app"));
    let count = || fs::read_dir(&dir).unwrap().count();
    let last = format!("line {}", LINES - 1);
    node.until_true("all lines are written", SOON, async || {
        let tail = node.skep(&["logs", "talk", "--tail", "1"]).await;
        String::from_utf8_lossy(&tail.stdout).trim() == last
    })
    .await;
    node.until_true("it was rotated twice", SOON, async || count() >= 3)
        .await;
    let log = whole(&dir);
    let lines: Vec<_> = log
        .lines()
        .map(|line| line.splitn(4, ' ').nth(3).unwrap())
        .collect();
    let expected: Vec<_> = (0..LINES).map(|number| format!("line {number}")).collect();
    assert_eq!(lines, expected);
    node.down().await;
}

#[tokio::test]
async fn a_termination_message_is_the_files_or_the_logs_end() {
    let node = Node::builder().up().await;
    let of_file = yaml::pod("file")
        .spec(json!({"restartPolicy": "Never"}))
        .container(
            "app",
            "echo to the log; echo to the file > /dev/termination-log; exit 3",
        );
    let of_log = yaml::pod("log")
        .spec(json!({"restartPolicy": "Never"}))
        .container("app", "echo to the log; exit 3")
        .with(json!({"terminationMessagePolicy": "FallbackToLogsOnError"}));
    node.write("file.yaml", of_file);
    node.write("log.yaml", of_log);
    // The first that is seen of the end has it, be it the kernel's word or the runtime's.
    let end = node
        .until("file ended", SOON, |pods| {
            pods.terminated("file", "app").cloned()
        })
        .await;
    assert_eq!(end.message.as_deref(), Some("to the file\n"));
    // The log's end comes with the runtime's record, which the kernel's word is ahead of.
    let told = node
        .until("log has a message", SOON, |pods| {
            pods.terminated("log", "app")?.message.clone()
        })
        .await;
    assert_eq!(told, "to the log\n");
    node.down().await;
}
