//! Asks the runtime how it fares, and tells everyone when that changes (CFG-05, CFG-06).

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    cri,
    health::{Board, Grade, Part},
    pleg,
};

/// Between two questions.
const PERIOD: Duration = Duration::from_secs(5);
/// An answer that takes longer is none: a stopped runtime must show within ten seconds.
const PATIENCE: Duration = Duration::from_secs(4);

/// Views of the runtime's state; each is none while all is well.
#[derive(Clone, Debug)]
pub struct Views {
    /// Why no pod can be synced.
    pub runtime: watch::Receiver<Option<String>>,
    /// Why the pods' network is not ready: pods on the host's network start all the same.
    pub network: watch::Receiver<Option<String>>,
}

/// Run it with [`Task::run`].
#[derive(Debug)]
pub struct Task {
    client: cri::Client,
    board: Board,
    pleg: pleg::Handle,
    runtime: watch::Sender<Option<String>>,
    network: watch::Sender<Option<String>>,
}

pub fn new(client: cri::Client, board: Board, pleg: pleg::Handle) -> (Views, Task) {
    let unknown = "container runtime status check may not have completed yet";
    let (runtime, runtime_rx) = watch::channel(Some(unknown.to_owned()));
    let (network, network_rx) = watch::channel(Some("network state unknown".to_owned()));
    let views = Views {
        runtime: runtime_rx,
        network: network_rx,
    };
    (
        views,
        Task {
            client,
            board,
            pleg,
            runtime,
            network,
        },
    )
}

impl Task {
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut period = tokio::time::interval(PERIOD);
        period.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut was_down = false;
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                _ = period.tick() => {}
            }
            let answer = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                answer = tokio::time::timeout(PATIENCE, self.client.status()) => answer,
            };
            let (runtime, network) = match answer {
                Ok(Ok(status)) => {
                    self.pleg.runtime_answered();
                    (
                        fault("runtime", &status.ready),
                        fault("runtime network", &status.network),
                    )
                }
                Ok(Err(error)) => {
                    let why = format!("container runtime is down: {}", error.message());
                    (Some(why), None)
                }
                Err(_) => {
                    let seconds = PATIENCE.as_secs();
                    let why =
                        format!("container runtime is down: no answer within {seconds} seconds");
                    (Some(why), None)
                }
            };
            let is_down = runtime.is_some();
            match (&runtime, &network) {
                (Some(why), _) | (None, Some(why)) => {
                    self.board.set(Part::Runtime, Grade::Bad, why.clone());
                }
                (None, None) => self.board.set(Part::Runtime, Grade::Good, "ready"),
            }
            if was_down && !is_down {
                tracing::info!("The runtime answers again");
                self.pleg.runtime_returned().await;
            }
            was_down = is_down;
            if !is_down {
                set(&self.network, network);
            }
            set(&self.runtime, runtime);
        }
    }
}

fn set(view: &watch::Sender<Option<String>>, now: Option<String>) {
    view.send_if_modified(|before| {
        let is_news = *before != now;
        *before = now;
        is_news
    });
}

/// Upstream's texts of a condition that is not good.
fn fault(part: &str, condition: &cri::Condition) -> Option<String> {
    let kind = if part == "runtime" {
        "RuntimeReady"
    } else {
        "NetworkReady"
    };
    (!condition.is_true).then(|| {
        format!(
            "container {part} not ready: {kind}=false reason:{} message:{}",
            condition.reason, condition.message
        )
    })
}
