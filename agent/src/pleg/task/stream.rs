//! The runtime's event stream (`GetContainerEvents`): wakes the PLEG where the kernel's events are
//! not to be had, and cuts waits short where they are.

use std::time::Duration;

use futures::StreamExt as _;
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{Cause, Task};
use crate::{
    config::PlegMode,
    cri::{self, EventKind, RuntimeEvent},
    metrics,
    types::{
        clock::{self, Mono},
        id::{ContainerId, PodUid},
        kernel::{Gap, GapPlace},
        runtime::{ContainerState, RuntimePod},
    },
};

/// Between attempts to open the stream, first and longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// A runtime without the call may be upgraded under us.
const RETRY_UNSUPPORTED: Duration = Duration::from_secs(300);

pub(super) enum StreamNews {
    Up,
    Event(RuntimeEvent),
    Down { why: String, is_unsupported: bool },
}

#[derive(Debug, Default)]
pub(super) struct State {
    is_up: bool,
    was_up: bool,
    /// Why it is down, for the health page.
    pub(super) why: Option<String>,
}

impl State {
    pub(super) fn is_up(&self) -> bool {
        self.is_up
    }
}

impl Task {
    /// Follows the stream in the background for as long as the PLEG runs.
    pub(super) fn spawn_stream(&mut self, stop: &CancellationToken) {
        if self.settings.best_mode == PlegMode::Listing {
            self.stream.why = Some("not wanted (--pleg-mode)".to_owned());
            return;
        }
        let (client, news, stop) = (
            self.deps.client.clone(),
            self.stream_tx.clone(),
            stop.clone(),
        );
        let follow = async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = follow(client, news) => {}
            }
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "ends with the token that its owner holds"
        )]
        drop(tokio::spawn(follow));
    }

    pub(super) fn on_stream(&mut self, news: StreamNews) {
        match news {
            StreamNews::Up => {
                metrics::EVENTED_PLEG_CONNECTION_SUCCESS.add(1, &[]);
                self.stream.is_up = true;
                self.stream.why = None;
                let was_up = std::mem::replace(&mut self.stream.was_up, true);
                self.choose_mode("the runtime's event stream is up");
                if was_up {
                    // What happened while it was down came by no event.
                    self.on_gap(Gap {
                        at: Mono::now(),
                        lost: 0,
                        place: GapPlace::RuntimeStream,
                    });
                }
            }
            StreamNews::Down {
                why,
                is_unsupported,
            } => {
                if !is_unsupported {
                    metrics::EVENTED_PLEG_CONNECTION_ERROR.add(1, &[]);
                }
                if self.stream.is_up {
                    tracing::warn!(%why, "The runtime's event stream broke");
                }
                self.stream.is_up = false;
                self.stream.why = Some(why);
                self.choose_mode("the runtime's event stream is down");
            }
            StreamNews::Event(event) => self.on_runtime_event(event),
        }
    }

    fn on_runtime_event(&mut self, event: RuntimeEvent) {
        if let Some(at) = event.at {
            let age = clock::wall_now().duration_since(at).as_secs_f64();
            metrics::EVENTED_PLEG_CONNECTION_LATENCY.record(age.max(0.0), &[]);
        }
        if event.kind == EventKind::Deleted && self.mode == Some(PlegMode::Kernel) {
            return self.on_removal(event);
        }
        if self.awaiting.is_waiting(&event.container) {
            if event.kind == EventKind::Stopped {
                self.awaiting.hurry(&event.container, Instant::now());
            }
            return;
        }
        let Some(uid) = event.uid else { return };
        match self.mode {
            // The kernel tells of starts and ends, and whoever creates reads afterwards; for what
            // others do, an end is news.
            Some(PlegMode::Kernel) => {
                if event.kind == EventKind::Stopped && !self.is_recorded(&uid, &event.container) {
                    self.want(&uid, Cause::Stream);
                }
            }
            // Before the mode is chosen too: the kernel's programs are being attached.
            Some(PlegMode::Stream) | None => {
                if event.kind == EventKind::Stopped && self.has_running(&uid, &event.container) {
                    // One question, of the container alone, where reading the pod takes three.
                    let (wall, now) = (clock::wall_now(), Instant::now());
                    self.awaiting
                        .add(&event.container, &uid, false, true, wall, now);
                    self.awaiting.hurry(&event.container, now);
                } else {
                    self.want(&uid, Cause::Stream);
                }
            }
            // Listings find it.
            Some(PlegMode::Listing) => {}
        }
    }

    /// The kernel has no word for this: a container that has ended leaves nothing there.
    fn on_removal(&mut self, event: RuntimeEvent) {
        let has_it = |pod: &RuntimePod| pod.has(&event.container);
        let uid = event.uid.or_else(|| {
            let pods = self.cache.all();
            pods.iter()
                .find(|pod| has_it(pod))
                .map(|pod| pod.uid.clone())
        });
        if let Some(uid) = uid {
            let at = Instant::now() + super::CHECK_REMOVAL_AFTER;
            self.removed.insert(event.container, (uid, at));
        }
    }

    /// Reads pods of which something was removed by others.
    pub(super) fn check_removed(&mut self, now: Instant) {
        let due: Vec<(ContainerId, PodUid)> = self
            .removed
            .extract_if(|_, (_, at)| *at <= now)
            .map(|(id, (uid, _))| (id, uid))
            .collect();
        for (id, uid) in due {
            if self.cache.get(&uid).is_some_and(|pod| pod.has(&id)) {
                self.want(&uid, Cause::Stream);
            }
        }
    }

    fn has_running(&self, uid: &PodUid, id: &ContainerId) -> bool {
        self.cache.get(uid).is_some_and(|pod| {
            pod.container(id)
                .is_some_and(|container| matches!(container.state, ContainerState::Running { .. }))
        })
    }

    fn is_recorded(&self, uid: &PodUid, id: &ContainerId) -> bool {
        self.cache.get(uid).is_some_and(|pod| {
            pod.container(id)
                .is_some_and(|container| container.state.exit().is_some())
                || pod
                    .sandboxes
                    .iter()
                    .any(|s| s.id.as_str() == id.as_str() && !s.is_ready)
        })
    }
}

async fn follow(client: cri::Client, news: mpsc::Sender<StreamNews>) {
    let (first, longest) = RETRY;
    let mut wait = first;
    loop {
        let (why, is_unsupported) = match client.events().await {
            Ok(events) => {
                wait = first;
                if news.send(StreamNews::Up).await.is_err() {
                    return;
                }
                until_broken(events, &news).await
            }
            Err(error) if error.is_unimplemented() => {
                ("the runtime does not offer it".to_owned(), true)
            }
            Err(error) => (error.to_string(), false),
        };
        if news
            .send(StreamNews::Down {
                why,
                is_unsupported,
            })
            .await
            .is_err()
        {
            return;
        }
        tokio::time::sleep(if is_unsupported {
            RETRY_UNSUPPORTED
        } else {
            wait
        })
        .await;
        wait = (wait * 2).min(longest);
    }
}

async fn until_broken(
    events: impl futures::Stream<Item = Result<RuntimeEvent, cri::Error>>,
    news: &mpsc::Sender<StreamNews>,
) -> (String, bool) {
    let mut events = std::pin::pin!(events);
    loop {
        match events.next().await {
            Some(Ok(event)) => {
                if news.send(StreamNews::Event(event)).await.is_err() {
                    return ("the agent is stopping".to_owned(), false);
                }
            }
            // Some runtimes refuse the call only after they have taken it.
            Some(Err(error)) => return (error.to_string(), error.is_unimplemented()),
            None => return ("the runtime ended it".to_owned(), false),
        }
    }
}
