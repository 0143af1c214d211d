//! What the runtime says of containers, with its own times: one subscription to its event stream
//! for the whole turn, in all subjects alike.
//!
//! [`Watch`] owns the list of events; benches look at the list and wait for it to grow.

use anyhow::{Context as _, Result, bail};
use proto::cri::v1 as api;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Duration, Instant, timeout_at},
};

use crate::{clock::Nanos, cri::Cri};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Created,
    Started,
    Stopped,
    Deleted,
}

/// One event of a container; those of sandboxes are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When the runtime made the event.
    pub at: Nanos,
    pub kind: Kind,
    /// The container's id.
    pub container: String,
    /// The container's name in its pod, where the runtime could tell.
    pub name: String,
    /// The pod's name as the manifest has it, where the runtime could tell.
    pub pod: String,
}

/// All events of this turn.
#[derive(Debug)]
pub struct Watch {
    events: watch::Receiver<Vec<Event>>,
    /// Ends with this value.
    _task: JoinSet<()>,
}

impl Watch {
    /// `suffix` is what the subject's pods have behind the manifest's names.
    pub async fn open(cri: &Cri, suffix: &'static str) -> Result<Self> {
        // The runtime may answer only with the first event.
        let cri = cri.clone();
        let (events_tx, events) = watch::channel(Vec::new());
        let mut task = JoinSet::new();
        task.spawn(async move {
            let ended: Result<()> = async {
                let mut stream = cri.events().await?;
                while let Some(event) = stream.message().await? {
                    if let Some(event) = read(event, suffix) {
                        events_tx.send_modify(|events| events.push(event));
                    }
                }
                Ok(())
            }
            .await;
            if let Err(error) = ended {
                eprintln!("the runtime's events ended: {error:#}");
            }
        });
        Ok(Self {
            events,
            _task: task,
        })
    }

    /// How many events there are: where to begin for what is about to happen.
    pub fn mark(&self) -> usize {
        self.events.borrow().len()
    }

    /// Waits until the events from `mark` on have what `find` looks for; none where that took
    /// longer than `limit`. The stream's end is an error.
    pub async fn find<T>(
        &self,
        mark: usize,
        limit: Duration,
        mut find: impl FnMut(&[Event]) -> Option<T>,
    ) -> Result<Option<T>> {
        let deadline = Instant::now() + limit;
        let mut events = self.events.clone();
        loop {
            if let Some(found) = find(&events.borrow_and_update()[mark..]) {
                return Ok(Some(found));
            }
            match timeout_at(deadline, events.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => bail!("the runtime's event stream has ended"),
                Err(_) => return Ok(None),
            }
        }
    }

    /// The same for one event of that kind and container.
    pub async fn event(
        &self,
        mark: usize,
        limit: Duration,
        kind: Kind,
        container: &str,
    ) -> Result<Option<Nanos>> {
        self.find(mark, limit, |events| {
            let is_it = |event: &&Event| event.kind == kind && event.container == container;
            events.iter().find(is_it).map(|event| event.at)
        })
        .await
    }

    /// The first start of a container of that name in the pod.
    pub async fn start(
        &self,
        mark: usize,
        limit: Duration,
        pod: &str,
        name: &str,
    ) -> Result<Option<Event>> {
        self.find(mark, limit, |events| {
            let is_it = |event: &&Event| {
                event.kind == Kind::Started && event.pod == pod && event.name == name
            };
            events.iter().find(is_it).cloned()
        })
        .await
    }

    /// Waits until each of the pods has had a container of that name started; an error when that
    /// takes longer than `limit`.
    pub async fn all_started(
        &self,
        mark: usize,
        limit: Duration,
        pods: &[&str],
        name: &str,
    ) -> Result<()> {
        let found = self
            .find(mark, limit, |events| {
                let mut left: std::collections::HashSet<&str> = pods.iter().copied().collect();
                for event in events {
                    if event.kind == Kind::Started && event.name == name {
                        left.remove(event.pod.as_str());
                    }
                }
                left.is_empty().then_some(())
            })
            .await?;
        found.with_context(|| format!("{} pods did not start within {limit:?}", pods.len()))
    }

    /// The events from `mark` on.
    pub fn since(&self, mark: usize) -> Vec<Event> {
        self.events.borrow()[mark..].to_vec()
    }

    /// The container of that name which runs in the pod.
    pub fn running(&self, pod: &str, name: &str) -> Option<String> {
        compute_running(&self.events.borrow(), pod, name).map(str::to_owned)
    }
}

fn compute_running<'a>(events: &'a [Event], pod: &str, name: &str) -> Option<&'a str> {
    let of_it = |event: &&Event| event.pod == pod && event.name == name;
    let started = events
        .iter()
        .rfind(|event| of_it(event) && event.kind == Kind::Started)?;
    let has_stopped = events
        .iter()
        .any(|event| event.container == started.container && event.kind == Kind::Stopped);
    (!has_stopped).then_some(&started.container)
}

/// None for a sandbox's event, and for a kind that is not known.
fn read(event: api::ContainerEventResponse, suffix: &str) -> Option<Event> {
    let sandbox = event.pod_sandbox_status.as_ref();
    if sandbox.is_some_and(|sandbox| sandbox.id == event.container_id) {
        return None;
    }
    let kind = match event.container_event_type() {
        api::ContainerEventType::ContainerCreatedEvent => Kind::Created,
        api::ContainerEventType::ContainerStartedEvent => Kind::Started,
        api::ContainerEventType::ContainerStoppedEvent => Kind::Stopped,
        api::ContainerEventType::ContainerDeletedEvent => Kind::Deleted,
    };
    let pod = sandbox
        .and_then(|sandbox| sandbox.metadata.as_ref())
        .map(|metadata| metadata.name.clone())
        .unwrap_or_default();
    let name = event
        .containers_statuses
        .iter()
        .find(|status| status.id == event.container_id)
        .and_then(|status| status.metadata.as_ref())
        .map(|metadata| metadata.name.clone())
        .unwrap_or_default();
    Some(Event {
        at: event.created_at,
        kind,
        name,
        pod: match pod.strip_suffix(suffix) {
            Some(name) => name.to_owned(),
            None => pod,
        },
        container: event.container_id,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: Kind, container: &str) -> Event {
        Event {
            at: 0,
            kind,
            container: container.to_owned(),
            name: "main".to_owned(),
            pod: "p".to_owned(),
        }
    }

    #[test]
    fn the_running_container_is_the_last_that_started_unless_it_stopped() {
        let mut events = vec![
            event(Kind::Started, "a"),
            event(Kind::Stopped, "a"),
            event(Kind::Started, "b"),
        ];
        assert_eq!(compute_running(&events, "p", "main"), Some("b"));
        assert_eq!(compute_running(&events, "q", "main"), None);
        events.push(event(Kind::Stopped, "b"));
        assert_eq!(compute_running(&events, "p", "main"), None);
    }

    #[test]
    fn a_static_pods_name_loses_its_nodes_name_and_a_sandbox_is_no_container() {
        let answer = api::ContainerEventResponse {
            container_id: "c1".into(),
            container_event_type: api::ContainerEventType::ContainerStartedEvent.into(),
            created_at: 5,
            pod_sandbox_status: Some(api::PodSandboxStatus {
                id: "s1".into(),
                metadata: Some(api::PodSandboxMetadata {
                    name: "p-node".into(),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            containers_statuses: vec![api::ContainerStatus {
                id: "c1".into(),
                metadata: Some(api::ContainerMetadata {
                    name: "main".into(),
                    attempt: 0,
                }),
                ..Default::default()
            }],
        };
        let mut wanted = event(Kind::Started, "c1");
        wanted.at = 5;
        assert_eq!(read(answer.clone(), "-node"), Some(wanted));
        let of_sandbox = api::ContainerEventResponse {
            container_id: "s1".into(),
            ..answer
        };
        assert_eq!(read(of_sandbox, "-node"), None);
    }
}
