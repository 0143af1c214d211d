//! From a reading to the cache and the sync loop: the kernel's word laid over, exits compared and
//! told, the difference sent as an event.

use tokio::{sync::mpsc::error::TrySendError, time::Instant};

use super::Task;
use crate::{
    metrics,
    pleg::{Change, PodEvent, awaiting::Awaited, deaths::OOM_KILLED, diff},
    types::{
        clock::{self, Mono},
        id::{ContainerId, PodUid},
        reason::event,
        runtime::{Container, ContainerState, Exit, RuntimePod, Witness},
        timeline::{Entry, Level},
    },
};

impl Task {
    /// A pod was read.
    pub(super) fn on_pod(&mut self, reading: RuntimePod, began: Instant) {
        self.suspects.explain(&reading.uid, began);
        for sandbox in reading.sandboxes.iter().filter(|sandbox| !sandbox.is_ready) {
            self.awaiting.done(&ContainerId::from(sandbox.id.as_str()));
        }
        // What is gone has no record to wait for.
        self.awaiting.retain(|id, end| {
            end.uid != reading.uid
                || reading.container(id).is_some()
                || reading
                    .sandboxes
                    .iter()
                    .any(|sandbox| sandbox.id.as_str() == id.as_str())
        });
        self.publish(reading, Some(began), None);
    }

    /// One awaited container was read.
    pub(super) fn on_container(&mut self, uid: &PodUid, container: Container) {
        let is_ended = matches!(
            container.state,
            ContainerState::Exited(_) | ContainerState::Unknown
        );
        if !is_ended {
            return;
        }
        let Some(known) = self.cache.get(uid) else {
            return;
        };
        let mut reading = (*known).clone();
        let Some(place) = reading
            .containers
            .iter_mut()
            .find(|known| known.id == container.id)
        else {
            return;
        };
        *place = container;
        self.publish(reading, None, None);
    }

    /// Stores what is known of a pod now and tells the sync loop what changed.
    pub(super) fn publish(
        &mut self,
        mut reading: RuntimePod,
        observed_at: Option<Instant>,
        kernel_at: Option<Mono>,
    ) {
        let uid = reading.uid.clone();
        let known = self.cache.get(&uid);
        self.note_records(&reading, known.as_deref());
        self.deaths.lay_over(&mut reading, known.as_deref());
        self.await_records(&reading);
        let nothing = RuntimePod::empty(uid.clone(), reading.key.clone());
        let before = known.as_deref().unwrap_or(&nothing);
        for container in &reading.containers {
            // Read between its making and its start, it is to be looked at again.
            if container.state != ContainerState::Created {
                self.started.remove(&container.id);
            }
        }
        let changes = diff::changes(before, &reading);
        if changes.is_empty() {
            if let Some(observed_at) = observed_at {
                self.cache.store_unchanged(&uid, observed_at);
            }
            return;
        }
        let is_start = |change: &Change| matches!(change, Change::ContainerStarted(_));
        if changes.iter().any(is_start) {
            self.learn_main_processes(&reading);
        }
        self.is_gauge_stale = true;
        self.cache.store(reading, observed_at);
        self.send(PodEvent {
            uid,
            changes,
            kernel_at,
        });
    }

    /// Exits that the runtime has now on record for the first time: compared with the kernel's
    /// word, and told.
    fn note_records(&mut self, reading: &RuntimePod, known: Option<&RuntimePod>) {
        for container in &reading.containers {
            let Some(exit) = container
                .state
                .exit()
                .filter(|e| e.witness == Witness::Runtime)
            else {
                continue;
            };
            let before = known.and_then(|known| known.container(&container.id));
            let was_recorded = before
                .and_then(|before| before.state.exit())
                .is_some_and(|before| before.witness == Witness::Runtime);
            // Exits from before the agent's start are history, not news.
            if was_recorded || known.is_none() && self.cache.complete_at().is_none() {
                continue;
            }
            if let Some(lag) = self.deaths.compare(container, Mono::now()) {
                metrics::RUNTIME_LAG.record(lag, &[]);
            }
            let death = self.deaths.get(&container.id);
            let is_oom = death.is_some_and(|death| death.is_oom);
            if is_oom && exit.reason != OOM_KILLED {
                metrics::OOM_REASON_CORRECTED.add(1, &[]);
            }
            let awaited = self.awaiting.done(&container.id);
            if awaited.as_ref().is_some_and(|awaited| awaited.is_told) {
                continue;
            }
            let exit = exit.clone();
            self.tell_exit(reading, container, Some(&exit), awaited.as_ref());
        }
    }

    /// Ends that only the kernel has shown so far: the runtime's record is awaited.
    fn await_records(&mut self, reading: &RuntimePod) {
        let has_stream = self.stream.is_up();
        for container in &reading.containers {
            let is_ahead = match &container.state {
                ContainerState::Exited(exit) => exit.witness == Witness::Kernel,
                // Empty, and how its main process ended was not told: only the runtime knows.
                ContainerState::Running { .. } => self
                    .deaths
                    .get(&container.id)
                    .is_some_and(|death| death.emptied_at.is_some()),
                ContainerState::Created | ContainerState::Unknown => false,
            };
            if is_ahead && !self.awaiting.is_waiting(&container.id) {
                let (wall, now) = (clock::wall_now(), Instant::now());
                self.awaiting
                    .add(&container.id, &reading.uid, false, has_stream, wall, now);
            }
        }
    }

    /// The runtime has no record yet, and it takes long: the timeline gets what is known.
    pub(super) fn tell_untold(&mut self, id: &ContainerId, end: &Awaited) {
        let Some(pod) = self.cache.get(&end.uid) else {
            return;
        };
        if let Some(container) = pod.container(id) {
            self.tell_exit(&pod, container, None, Some(end));
        }
    }

    fn tell_exit(
        &self,
        pod: &RuntimePod,
        container: &Container,
        recorded: Option<&Exit>,
        awaited: Option<&Awaited>,
    ) {
        let death = self.deaths.get(&container.id);
        let kernel = death.and_then(|death| death.exit);
        let is_oom = death.is_some_and(|death| death.is_oom);
        let code = recorded
            .map(|exit| exit.code)
            .or(kernel.map(|(exit, _)| exit.code()));
        let reason = match recorded {
            _ if is_oom => OOM_KILLED,
            Some(exit) => exit.reason.as_str(),
            None => "not yet on the runtime's record",
        };
        let code = code.map_or_else(|| "unknown".to_owned(), |code| code.to_string());
        let signal = match kernel {
            Some((crate::types::kernel::KernelExit::Signal(signal), _)) => {
                format!(" (signal {signal})")
            }
            Some((crate::types::kernel::KernelExit::Code(_), _)) | None => String::new(),
        };
        let now = clock::wall_now();
        let level = if code == "0" {
            Level::Normal
        } else {
            Level::Warning
        };
        let message = format!("exit code {code}{signal}, {reason}");
        self.deps.recorder.record(Entry {
            agent_at: awaited.map_or(now, |awaited| awaited.known_at),
            kernel_at: kernel.map(|(_, at)| at.to_wall()),
            runtime_at: recorded.map(|exit| exit.finished_at),
            runtime_known_at: recorded.map(|_| now),
            pod: Some(pod.key.clone()),
            uid: Some(pod.uid.clone()),
            container: Some(container.name.clone()),
            container_id: Some(container.id.clone()),
            ..Entry::now(level, event::DIED, message)
        });
    }

    /// Never waits: the cache holds the state, so an event that has to wait its turn loses nothing.
    fn send(&mut self, event: PodEvent) {
        if !self.unsent.is_empty() {
            self.hold(event);
            return;
        }
        match self.events.try_send(event) {
            Ok(()) => {}
            Err(TrySendError::Full(event)) => {
                metrics::PLEG_DISCARD_EVENTS.add(1, &[]);
                self.hold(event);
            }
            // The sync loop has ended, and with it the agent.
            Err(TrySendError::Closed(_)) => {}
        }
    }

    /// Keeps one event a pod, and each change of it once.
    fn hold(&mut self, event: PodEvent) {
        match self.unsent.iter_mut().find(|held| held.uid == event.uid) {
            Some(held) => {
                held.changes.retain(|held| !event.changes.contains(held));
                held.changes.extend(event.changes);
            }
            None => self.unsent.push_back(event),
        }
    }

    /// PLEG-20, from the cache and only after it changed.
    pub(super) fn refresh_gauges(&mut self) {
        if !std::mem::take(&mut self.is_gauge_stale) {
            return;
        }
        let (mut pods, mut created, mut running, mut exited, mut unknown) = (0, 0, 0, 0, 0);
        for pod in self.cache.all() {
            pods += u32::from(pod.sandboxes.iter().any(|sandbox| sandbox.is_ready));
            for container in &pod.containers {
                match container.state {
                    ContainerState::Created => created += 1,
                    ContainerState::Running { .. } => running += 1,
                    ContainerState::Exited(_) => exited += 1,
                    ContainerState::Unknown => unknown += 1,
                }
            }
        }
        metrics::RUNNING_PODS.set(f64::from(pods), &[]);
        for (state, count) in [
            ("created", created),
            ("running", running),
            ("exited", exited),
            ("unknown", unknown),
        ] {
            metrics::RUNNING_CONTAINERS.set(f64::from(count), &[("container_state", state)]);
        }
    }

    pub(super) fn report_after_listing(&mut self) {
        self.on_health();
    }
}
