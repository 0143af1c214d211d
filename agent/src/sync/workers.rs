//! The workers of all pods: who has one, who waits for a namesake to be gone, who panicked.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    task::{Id, JoinError, JoinSet},
};
use tokio_util::sync::CancellationToken;

use crate::{
    metrics,
    types::{
        id::{PodKey, PodUid},
        pod::Pod,
    },
    worker::{Context, Desired, Kick, Mailbox, Stop, Worker, machine::Phase},
};

/// A worker that panicked is started again after this.
const AFTER_PANIC: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Employed {
    pod: Pod,
    mailbox: Mailbox,
    phase: watch::Receiver<Phase>,
}

/// How a worker's task ended.
pub(super) type Ended = Result<(Id, (PodUid, bool)), JoinError>;

#[derive(Debug)]
pub(super) struct Workers {
    context: Arc<Context>,
    stop: CancellationToken,
    employed: HashMap<PodUid, Employed>,
    by_task: HashMap<Id, PodUid>,
    tasks: JoinSet<(PodUid, bool)>,
    /// Pods whose namesake is not gone yet, in the order of their arrival (WORK-09).
    waiting: Vec<Pod>,
}

impl Workers {
    pub(super) fn new(context: Arc<Context>, stop: CancellationToken) -> Self {
        Self {
            context,
            stop,
            employed: HashMap::new(),
            by_task: HashMap::new(),
            tasks: JoinSet::new(),
            waiting: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.employed.len()
    }

    pub(super) fn uids(&self) -> Vec<PodUid> {
        self.employed.keys().cloned().collect()
    }

    pub(super) fn keys(&self) -> Vec<PodKey> {
        let mut keys: Vec<PodKey> = self
            .employed
            .values()
            .map(|employed| employed.pod.key().clone())
            .collect();
        keys.sort();
        keys
    }

    pub(super) fn has(&self, uid: &PodUid) -> bool {
        self.employed.contains_key(uid)
    }

    pub(super) fn phase(&self, uid: &PodUid) -> Option<Phase> {
        self.employed
            .get(uid)
            .map(|employed| *employed.phase.borrow())
    }

    /// Phases of all workers, with whether the pod is static.
    pub(super) fn phases(&self) -> impl Iterator<Item = (Phase, bool)> + '_ {
        self.employed
            .values()
            .map(|employed| (*employed.phase.borrow(), employed.pod.is_static()))
    }

    /// Pods whose containers may still run.
    pub(super) fn active(&self) -> impl Iterator<Item = Pod> + '_ {
        self.employed
            .values()
            .filter(|employed| !employed.phase.borrow().is_terminating())
            .map(|employed| employed.pod.clone())
    }

    /// Gives the pod to its worker, or to a new one once no namesake is left.
    pub(super) fn assign(&mut self, pod: Pod) {
        if let Some(employed) = self.employed.get_mut(pod.uid()) {
            employed.pod = pod.clone();
            employed.mailbox.want(Desired::Run(pod));
            return;
        }
        let has_namesake = self
            .employed
            .values()
            .any(|employed| employed.pod.key() == pod.key());
        if has_namesake {
            self.waiting.retain(|waiting| waiting.uid() != pod.uid());
            self.waiting.push(pod);
            return;
        }
        self.employ(pod);
    }

    pub(super) fn kick(&self, uid: &PodUid, kick: Kick) {
        if let Some(employed) = self.employed.get(uid) {
            employed.mailbox.kick(kick);
        }
    }

    pub(super) fn stop(&mut self, uid: &PodUid, order: Stop) {
        self.waiting.retain(|waiting| waiting.uid() != uid);
        if let Some(employed) = self.employed.get(uid) {
            employed.mailbox.want(Desired::Stop(order));
        }
    }

    /// A worker's end, once there is one.
    pub(super) async fn join_next(&mut self) -> Option<Ended> {
        self.tasks.join_next_with_id().await
    }

    /// Books the end. Returns the uid if the pod is gone; a worker that panicked is employed again
    /// after a while, and the other pods do not notice.
    pub(super) fn on_ended(&mut self, ended: Ended) -> Option<PodUid> {
        let (task, is_gone) = match &ended {
            Ok((task, (_, is_gone))) => (*task, *is_gone),
            Err(error) => (error.id(), false),
        };
        let uid = self.by_task.remove(&task)?;
        let employed = self.employed.remove(&uid)?;
        if let Err(error) = ended
            && error.is_panic()
        {
            metrics::WORKER_PANICS.add(1, &[]);
            tracing::error!(pod = %employed.pod.key(), %error, "A pod's worker panicked");
            let is_stopped = employed.phase.borrow().is_terminating();
            self.employ_after(employed.pod, is_stopped, AFTER_PANIC);
            return None;
        }
        if !is_gone {
            return None;
        }
        let key = employed.pod.key();
        if let Some(at) = self.waiting.iter().position(|waiting| waiting.key() == key) {
            let next = self.waiting.remove(at);
            self.employ(next);
        }
        Some(uid)
    }

    /// Waits until every worker has ended its step; called once the stop token is cancelled.
    pub(super) async fn end(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }

    fn employ(&mut self, pod: Pod) {
        self.employ_after(pod, false, Duration::ZERO);
    }

    fn employ_after(&mut self, pod: Pod, is_stopped: bool, wait: Duration) {
        let (worker, mailbox, phase) = Worker::new(self.context.clone(), pod.clone());
        if is_stopped {
            mailbox.want(Desired::Stop(Stop { grace: None }));
        }
        let stop = self.stop.clone();
        let uid = pod.uid().clone();
        let span = tracing::info_span!("worker", pod = %pod.key(), %uid);
        let work = async move {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            worker.run(stop).await
        };
        let task = self
            .tasks
            .spawn(tracing::Instrument::instrument(work, span))
            .id();
        self.by_task.insert(task, uid.clone());
        self.employed.insert(
            uid,
            Employed {
                pod,
                mailbox,
                phase,
            },
        );
    }
}
