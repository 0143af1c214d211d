//! What the servers ask of parts that are built after them: the servers come first, so that a node
//! without a runtime can say what it waits for.

use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use futures::{StreamExt as _, stream};
use tokio::{
    sync::{OnceCell, mpsc, watch},
    time::Instant,
};

use crate::{
    config::Config,
    pleg,
    server::{self, wire},
    source::Refusal,
    supervise,
    sync::{Order, Remaining},
    types::id::PodKey,
};

/// `down` does not wait longer for a runtime that does not answer.
const DOWN_PATIENCE: Duration = Duration::from_secs(30);

/// Filled in as the parts come up. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Shared(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    node: String,
    endpoint: String,
    runtime: OnceCell<String>,
    /// Why the runtime is of no use; none while it is.
    runtime_fault: OnceCell<watch::Receiver<Option<String>>>,
    pleg: OnceCell<pleg::Handle>,
    containerd: OnceCell<watch::Receiver<supervise::State>>,
    refusals: watch::Receiver<Vec<Refusal>>,
    orders: mpsc::Sender<Order>,
    /// None until `down` is asked for; then what is left.
    progress: watch::Sender<Option<Remaining>>,
}

impl Shared {
    pub(super) fn new(
        config: &Config,
        orders: mpsc::Sender<Order>,
        refusals: watch::Receiver<Vec<Refusal>>,
    ) -> Self {
        Self(Arc::new(Inner {
            node: config.node.name.clone(),
            endpoint: config.runtime.endpoint.clone(),
            runtime: OnceCell::new(),
            runtime_fault: OnceCell::new(),
            pleg: OnceCell::new(),
            containerd: OnceCell::new(),
            refusals,
            orders,
            progress: watch::channel(None).0,
        }))
    }

    // Each is set once, by the composition root.
    pub(super) fn set_runtime(&self, name_and_version: String) {
        self.0.runtime.set(name_and_version).ok();
    }

    pub(super) fn set_runtime_fault(&self, fault: watch::Receiver<Option<String>>) {
        self.0.runtime_fault.set(fault).ok();
    }

    pub(super) fn set_pleg(&self, pleg: pleg::Handle) {
        self.0.pleg.set(pleg).ok();
    }

    pub(super) fn set_containerd(&self, state: watch::Receiver<supervise::State>) {
        self.0.containerd.set(state).ok();
    }

    pub(super) fn describe(&self) -> server::Describe {
        let shared = self.0.clone();
        Arc::new(move || {
            let mut pids = BTreeMap::from([("agent".to_owned(), std::process::id())]);
            if let Some(state) = shared.containerd.get()
                && let supervise::State::Running { pid } = &*state.borrow()
            {
                pids.insert("containerd".to_owned(), pid.unsigned_abs());
            }
            wire::Description {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                node: shared.node.clone(),
                mode: shared
                    .pleg
                    .get()
                    .and_then(pleg::Handle::mode)
                    .map(|mode| mode.to_string()),
                runtime_endpoint: shared.endpoint.clone(),
                runtime: shared.runtime.get().cloned(),
                pids,
                refusals: shared
                    .refusals
                    .borrow()
                    .iter()
                    .map(|refusal| wire::SourceRefusal {
                        origin: refusal.origin.clone(),
                        message: refusal.message.clone(),
                    })
                    .collect(),
            }
        })
    }

    pub(super) fn relist(&self) -> server::Relist {
        let shared = self.0.clone();
        Arc::new(move || {
            let shared = shared.clone();
            Box::pin(async move {
                let pleg = shared.pleg.get().ok_or("the runtime is not there yet")?;
                let found = pleg.relist().await?;
                Ok(wire::ListingReport {
                    sandboxes: found.sandboxes,
                    containers: found.containers,
                    missed: found.missed,
                })
            })
        })
    }

    pub(super) fn down(&self) -> server::Down {
        let shared = self.0.clone();
        Arc::new(move || {
            let begin = {
                let shared = shared.clone();
                async move {
                    if shared.progress.borrow().is_none() {
                        let order = Order::StopAll {
                            progress: shared.progress.clone(),
                        };
                        // An error means that the agent is ending already.
                        shared.orders.send(order).await.ok();
                    }
                    shared.progress.subscribe()
                }
            };
            let failed = {
                let shared = shared.clone();
                async move {
                    let why = gone_for(DOWN_PATIENCE, || shared.runtime_fault()).await;
                    let left = shared
                        .progress
                        .borrow()
                        .as_ref()
                        .map(|left| left.pods.len());
                    failure(&why, left)
                }
            };
            until_failed(stream::once(begin).flat_map(lines), failed).boxed()
        })
    }

    /// Resolves when everything is stopped after `down`.
    pub(super) async fn is_down(&self) {
        let mut progress = self.0.progress.subscribe();
        // The sender lives as long as `self`.
        let is_empty = |left: &Option<Remaining>| left.as_ref().is_some_and(|l| l.pods.is_empty());
        if progress.wait_for(is_empty).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Inner {
    fn runtime_fault(&self) -> Option<String> {
        match self.runtime_fault.get() {
            Some(fault) => fault.borrow().clone(),
            None => Some(format!(
                "the runtime at {} has not answered yet",
                self.endpoint
            )),
        }
    }
}

/// Ends once there has been a fault for all of `patience`: with what it is.
async fn gone_for(patience: Duration, fault: impl Fn() -> Option<String>) -> String {
    let mut since = None;
    loop {
        match fault() {
            None => since = None,
            Some(why) if since.get_or_insert_with(Instant::now).elapsed() >= patience => {
                return why;
            }
            Some(_) => {}
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// `left` is how many pods there are; none where that is not known yet. Pure.
fn failure(why: &str, left: Option<usize>) -> wire::DownProgress {
    let pods = match left {
        None => "the pods were not stopped".to_owned(),
        Some(1) => "1 pod is left".to_owned(),
        Some(left) => format!("{left} pods are left"),
    };
    wire::DownProgress {
        message: format!("{why}: {pods}; the agent goes on once the runtime answers"),
        pod: None,
        left: left.unwrap_or_default(),
        has_failed: true,
    }
}

/// The lines, or those before the failure and the failure as the last.
fn until_failed(
    lines: impl futures::Stream<Item = wire::DownProgress> + Send + 'static,
    failed: impl Future<Output = wire::DownProgress> + Send + 'static,
) -> impl futures::Stream<Item = wire::DownProgress> {
    let start = Some((Box::pin(lines), Box::pin(failed)));
    stream::unfold(start, |state| async move {
        let (mut lines, mut failed) = state?;
        tokio::select! {
            biased;
            line = lines.next() => line.map(|line| (line, Some((lines, failed)))),
            failure = &mut failed => Some((failure, None)),
        }
    })
}

/// A line for each pod that is gone, and one at the end.
fn lines(
    mut progress: watch::Receiver<Option<Remaining>>,
) -> impl futures::Stream<Item = wire::DownProgress> {
    progress.mark_changed();
    let start = (progress, Vec::<PodKey>::new(), false);
    stream::unfold(start, |(mut progress, before, is_over)| async move {
        if is_over {
            return None;
        }
        let Remaining { pods: now, faults } =
            progress.wait_for(Option::is_some).await.ok()?.clone()?;
        if now == before && !now.is_empty() {
            progress.changed().await.ok()?;
        }
        let said = news(&before, &now, faults);
        let is_over = now.is_empty();
        Some((said, (progress, now, is_over)))
    })
    .flat_map(stream::iter)
}

/// What has happened between two looks. Pure.
fn news(before: &[PodKey], now: &[PodKey], faults: Vec<String>) -> Vec<wire::DownProgress> {
    let line = |message: String, pod: Option<&PodKey>| wire::DownProgress {
        message,
        pod: pod.cloned(),
        left: now.len(),
        has_failed: false,
    };
    let mut said: Vec<_> = before
        .iter()
        .filter(|key| !now.contains(key))
        .map(|key| line(format!("pod {key} stopped"), Some(key)))
        .collect();
    if now.is_empty() && faults.is_empty() {
        said.push(line("all pods are stopped".to_owned(), None));
    }
    said.extend(faults.into_iter().map(|fault| wire::DownProgress {
        has_failed: true,
        ..line(fault, None)
    }));
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> PodKey {
        PodKey::new("default", name)
    }

    #[tokio::test]
    async fn down_tells_of_each_pod_and_ends_when_none_is_left() {
        let (progress, seen) = watch::channel(None);
        let left = |names: &[&str]| {
            Some(Remaining {
                pods: names.iter().map(|name| key(name)).collect(),
                faults: Vec::new(),
            })
        };
        let mut told = std::pin::pin!(lines(seen));
        progress.send_replace(left(&["a", "b"]));
        assert!(futures::poll!(told.next()).is_pending());
        progress.send_replace(left(&["b"]));
        let line = told.next().await.expect("a line");
        assert_eq!(
            (line.message.as_str(), line.left),
            ("pod default/a stopped", 1)
        );
        progress.send_replace(left(&[]));
        let rest: Vec<_> = told.map(|line| line.message).collect().await;
        assert_eq!(rest, ["pod default/b stopped", "all pods are stopped"]);
    }

    #[tokio::test]
    async fn down_fails_with_what_could_not_be_removed() {
        let (progress, seen) = watch::channel(None);
        progress.send_replace(Some(Remaining {
            pods: Vec::new(),
            faults: vec!["remove container c1: busy".to_owned()],
        }));
        let told: Vec<_> = lines(seen)
            .map(|line| (line.message, line.has_failed))
            .collect()
            .await;
        assert_eq!(told, [("remove container c1: busy".to_owned(), true)]);
    }

    #[tokio::test(start_paused = true)]
    async fn down_fails_when_the_runtime_does_not_answer_for_long() {
        let (progress, seen) = watch::channel(None);
        progress.send_replace(Some(Remaining {
            pods: vec![key("a"), key("b")],
            faults: Vec::new(),
        }));
        let failed = async {
            let fault = || Some("container runtime is down: no answer".to_owned());
            failure(&gone_for(DOWN_PATIENCE, fault).await, Some(2))
        };
        let began = Instant::now();
        let told: Vec<_> = until_failed(lines(seen), failed).collect().await;
        assert!(began.elapsed() < DOWN_PATIENCE * 2);
        assert_eq!(told.len(), 1);
        assert!(told[0].has_failed);
        assert_eq!(
            told[0].message,
            "container runtime is down: no answer: 2 pods are left; \
             the agent goes on once the runtime answers"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_comes_back_is_waited_for() {
        let began = Instant::now();
        // Down for 20 seconds at a time.
        let fault = || (began.elapsed().as_secs() % 25 < 20).then(|| "down".to_owned());
        let waiting = gone_for(DOWN_PATIENCE, fault);
        let waited = tokio::time::timeout(DOWN_PATIENCE * 10, waiting).await;
        assert!(waited.is_err());
    }
}
