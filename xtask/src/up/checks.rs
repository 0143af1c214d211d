//! What each example is there to show, as questions to what the agent tells. Pure, but for the one
//! that asks the web server.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use serde_json::Value;

/// The host port of `deploy/examples/web.yaml`.
const WEB: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8088);

type Question = fn(&Seen<'_>) -> bool;

/// One thing to be seen.
pub(super) struct Check {
    pub(super) sentence: &'static str,
    pub(super) is_met: Question,
    /// From the agent's start.
    pub(super) seen_after: Option<Duration>,
}

impl Check {
    pub(super) fn line(&self) -> String {
        match self.seen_after {
            Some(time) => format!("  [x] {:>5.1} s  {}", time.as_secs_f64(), self.sentence),
            None => format!("  [ ]          {}", self.sentence),
        }
    }
}

pub(super) fn all() -> Vec<Check> {
    let checks: [(&'static str, Question); 9] = [
        ("web is Running", |seen| seen.is_running("web")),
        ("web answers on its host port", |_| web_answers()),
        ("sidecar is Running, its init container done", |seen| {
            seen.is_running("sidecar")
                && seen.init_is_done("sidecar", "prepare")
                && seen.is_ready("sidecar")
        }),
        ("crash-looper was started again, twice", |seen| {
            seen.restarts("crash-looper") >= Some(2)
        }),
        ("crash-looper is in CrashLoopBackOff after code 3", |seen| {
            seen.is_backing_off("crash-looper") && seen.last_exit("crash-looper", "Error", 3)
        }),
        ("memory-hog was OOMKilled", |seen| {
            seen.last_exit("memory-hog", "OOMKilled", 137)
        }),
        ("memory-hog is in CrashLoopBackOff", |seen| {
            seen.is_backing_off("memory-hog")
        }),
        (
            "every exit of crash-looper and of sidecar's init container has its kernel, runtime \
             and agent times",
            |seen| {
                seen.exits_are_timed("crash-looper", "crash")
                    && seen.exits_are_timed("sidecar", "prepare")
            },
        ),
        (
            "every exit of memory-hog has its kernel, runtime and agent times",
            |seen| seen.exits_are_timed("memory-hog", "hog"),
        ),
    ];
    checks
        .map(|(sentence, is_met)| Check {
            sentence,
            is_met,
            seen_after: None,
        })
        .into()
}

/// What the agent tells at one moment.
pub(super) struct Seen<'a> {
    pods: Vec<&'a Value>,
    events: Vec<Value>,
}

impl<'a> Seen<'a> {
    /// From a list of pods, and timeline entries, one a line. What cannot be read shows nothing.
    pub(super) fn new(pods: Option<&'a Value>, events: &str) -> Self {
        let pods = pods
            .and_then(|list| list.get("items")?.as_array())
            .map(|items| items.iter().collect())
            .unwrap_or_default();
        let events = events
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        Self { pods, events }
    }

    /// Static pods carry the node's name at their own's end.
    fn pod(&self, name: &str) -> Option<&'a Value> {
        self.pods
            .iter()
            .find(|pod| {
                pod.pointer("/metadata/name")
                    .and_then(Value::as_str)
                    .is_some_and(|it| is_named(it, name))
            })
            .copied()
    }

    fn container(&self, pod: &str) -> Option<&'a Value> {
        self.pod(pod)?.pointer("/status/containerStatuses/0")
    }

    fn is_running(&self, pod: &str) -> bool {
        self.pod(pod)
            .and_then(|pod| pod.pointer("/status/phase"))
            .is_some_and(|phase| phase == "Running")
    }

    fn is_ready(&self, pod: &str) -> bool {
        self.pod(pod)
            .and_then(|pod| pod.pointer("/status/conditions")?.as_array())
            .is_some_and(|conditions| {
                conditions
                    .iter()
                    .any(|it| it["type"] == "Ready" && it["status"] == "True")
            })
    }

    fn init_is_done(&self, pod: &str, container: &str) -> bool {
        self.pod(pod)
            .and_then(|pod| pod.pointer("/status/initContainerStatuses")?.as_array())
            .is_some_and(|statuses| {
                statuses.iter().any(|it| {
                    it["name"] == container
                        && it.pointer("/state/terminated/exitCode") == Some(&Value::from(0))
                })
            })
    }

    fn restarts(&self, pod: &str) -> Option<u64> {
        self.container(pod)?.get("restartCount")?.as_u64()
    }

    fn is_backing_off(&self, pod: &str) -> bool {
        self.container(pod)
            .and_then(|it| it.pointer("/state/waiting/reason"))
            .is_some_and(|reason| reason == "CrashLoopBackOff")
    }

    fn last_exit(&self, pod: &str, reason: &str, code: u64) -> bool {
        self.container(pod).is_some_and(|container| {
            ["/state/terminated", "/lastState/terminated"]
                .iter()
                .filter_map(|path| container.pointer(path))
                .any(|exit| exit["reason"] == reason && exit["exitCode"] == code)
        })
    }

    /// There are exits of the container, and each has all three times.
    fn exits_are_timed(&self, pod: &str, container: &str) -> bool {
        let mut exits = self
            .events
            .iter()
            .filter(|entry| {
                entry["container"] == container
                    && (entry["reason"] == "Died" || entry["reason"] == "OOMKilled")
                    && entry
                        .pointer("/pod/name")
                        .and_then(Value::as_str)
                        .is_some_and(|name| is_named(name, pod))
            })
            .peekable();
        exits.peek().is_some()
            && exits.all(|entry| {
                ["kernelAt", "runtimeAt", "agentAt"]
                    .iter()
                    .all(|time| entry[time].is_string())
            })
    }
}

fn is_named(full: &str, name: &str) -> bool {
    full.strip_prefix(name)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

fn web_answers() -> bool {
    let ask = || -> std::io::Result<String> {
        let limit = Duration::from_secs(2);
        let mut stream = TcpStream::connect_timeout(&WEB, limit)?;
        stream.set_read_timeout(Some(limit))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.contains("200 OK") && answer.contains("Hello from web"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pods(state: Value, last: Value) -> Value {
        json!({"items": [{
            "metadata": {"name": "memory-hog-node1", "namespace": "default"},
            "status": {
                "phase": "Running",
                "containerStatuses": [
                    {"name": "hog", "restartCount": 2, "state": state, "lastState": last},
                ],
            },
        }]})
    }

    #[test]
    fn a_memory_kill_followed_by_back_off_is_seen() {
        let list = pods(
            json!({"waiting": {"reason": "CrashLoopBackOff"}}),
            json!({"terminated": {"reason": "OOMKilled", "exitCode": 137}}),
        );
        let seen = Seen::new(Some(&list), "");
        assert!(seen.last_exit("memory-hog", "OOMKilled", 137));
        assert!(seen.is_backing_off("memory-hog"));
        assert_eq!(seen.restarts("memory-hog"), Some(2));
        assert!(!seen.last_exit("memory-hog", "Error", 137));
    }

    #[test]
    fn a_running_container_shows_neither() {
        let list = pods(json!({"running": {}}), json!({}));
        let seen = Seen::new(Some(&list), "");
        assert!(seen.is_running("memory-hog"));
        assert!(!seen.is_backing_off("memory-hog"));
        assert!(!seen.is_running("memory-h"), "half a name is no name");
    }

    #[test]
    fn an_agent_that_does_not_answer_shows_nothing() {
        let seen = Seen::new(None, "");
        assert!(!seen.is_running("web"));
        assert_eq!(seen.restarts("web"), None);
        assert!(!seen.exits_are_timed("web", "httpd"));
    }

    #[test]
    fn one_exit_without_a_kernel_time_is_one_too_many() {
        let entry = |kernel: Option<&str>| {
            let mut entry = json!({
                "agentAt": "2026-01-01T00:00:01Z",
                "runtimeAt": "2026-01-01T00:00:00Z",
                "pod": {"namespace": "default", "name": "crash-looper-node1"},
                "container": "crash",
                "reason": "Died",
            });
            if let Some(time) = kernel {
                entry["kernelAt"] = time.into();
            }
            entry.to_string()
        };
        let timed = entry(Some("2026-01-01T00:00:00Z"));
        assert!(Seen::new(None, &timed).exits_are_timed("crash-looper", "crash"));
        let mixed = format!("{timed}\n{}", entry(None));
        assert!(!Seen::new(None, &mixed).exits_are_timed("crash-looper", "crash"));
    }
}
