//! Carries a plan out: kills, a new sandbox, starts. Each step that fails becomes a waiting reason
//! and an event; the others go on where they can (KRT-04, KRT-12).

use std::{net::IpAddr, path::Path, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Container as ContainerSpec;
use proto::cri::v1::PodSandboxConfig;
use tokio::time::Instant;

use super::{
    Context, Worker,
    config_error::ConfigError,
    container::{ContainerInput, container_config},
    context::spec_of,
    dns, env, kill, mounts,
    plan::{Kill, NewSandbox, Plan, Start},
    sandbox::sandbox_config,
    security::ImageUser,
};
use crate::{
    gc,
    image::Ensured,
    metrics,
    status::Waiting,
    types::{
        backoff::{self, Decision},
        clock,
        id::{ContainerId, SandboxId},
        pod::{Pod, Role},
        reason::{event, waiting},
        runtime::{ContainerState, RuntimePod},
        timeline::Level,
    },
};

/// What came of a plan.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// The runtime was changed: the cache must be read again before the next plan.
    pub(super) has_acted: bool,
    /// Something is to be tried again after this.
    pub(super) retry_in: Option<Duration>,
}

impl Done {
    fn retry(&mut self, wait: Duration) {
        self.retry_in = Some(self.retry_in.map_or(wait, |before| before.min(wait)));
    }
}

/// After a step that failed (LOOP-06).
const RETRY: Duration = Duration::from_secs(10);

/// After stops that nothing follows.
const SETTLING: Duration = Duration::from_secs(1);

/// The sandbox in which containers are started.
struct Place {
    id: SandboxId,
    config: PodSandboxConfig,
    ips: Vec<IpAddr>,
}

pub(super) async fn carry_out(worker: &mut Worker, plan: Plan, observed: &RuntimePod) -> Done {
    let mut done = Done::default();
    let (context, pod) = (worker.context().clone(), worker.pod().clone());
    let grace = kill::grace(&pod, None);
    if let Some(NewSandbox {
        replaces: Some(_), ..
    }) = &plan.sandbox
    {
        let text = "Pod sandbox changed, it will be killed and re-created.";
        context.event(&pod, None, Level::Normal, event::SANDBOX_CHANGED, text);
    }
    if plan.kill_pod {
        done.has_acted = true;
        if let Err(error) = kill::kill_pod(&context, &pod, observed, grace).await {
            let message = format!("error killing pod: {error}");
            context.event(&pod, None, Level::Warning, event::FAILED_KILL_POD, message);
            done.retry(RETRY);
            return done;
        }
    }
    for Kill { id, name, message } in &plan.kill {
        let Some(container) = observed.container(id) else {
            continue;
        };
        done.has_acted = true;
        let killed = kill::kill_container(&context, &pod, container, Some(message), grace).await;
        if let Err(error) = killed {
            tracing::warn!(pod = %pod.key(), container = name, %error, "A container could not be stopped");
            done.retry(RETRY);
            return done;
        }
    }
    for id in &plan.remove {
        done.has_acted = true;
        if runs_by_now(&context, observed, id).await {
            // An agent that died in the middle of a start had it started after all: it stays.
            done.retry(SETTLING);
            return done;
        }
        if let Err(error) = context.runtime.remove_container(id).await
            && !error.is_not_found()
        {
            tracing::warn!(pod = %pod.key(), %id, %error, "A container record could not be removed");
            done.retry(RETRY);
            return done;
        }
    }
    if plan.sandbox.is_none() && plan.start.is_empty() {
        // Nothing more is wanted of the runtime; what it makes of this is seen a moment later.
        done.retry(SETTLING);
        return done;
    }
    let place = match place(&context, &pod, plan.sandbox.as_ref(), observed, &mut done).await {
        Ok(Some(place)) => place,
        Ok(None) => return done,
        Err(message) => {
            context.event(
                &pod,
                None,
                Level::Warning,
                event::FAILED_CREATE_POD_SANDBOX,
                message,
            );
            done.retry(RETRY);
            return done;
        }
    };
    for start in &plan.start {
        if worker.mailbox().has_stop() {
            break;
        }
        let is_started = start_container(worker, start, &place, observed, &mut done).await;
        if !is_started && start.role == Role::Init {
            break;
        }
    }
    done
}

/// A container that was made and not started when it was last read, and runs now.
async fn runs_by_now(context: &Context, observed: &RuntimePod, id: &ContainerId) -> bool {
    let Some(container) = observed.container(id) else {
        return false;
    };
    if container.state != ContainerState::Created {
        return false;
    }
    match context
        .runtime
        .container_status(id, &container.sandbox)
        .await
    {
        Ok(now) => now.state.is_running(),
        Err(_) => false,
    }
}

/// The sandbox to start containers in: the one there is, or a new one. None where nothing is to be
/// started.
async fn place(
    context: &Arc<Context>,
    pod: &Pod,
    new: Option<&NewSandbox>,
    observed: &RuntimePod,
    done: &mut Done,
) -> Result<Option<Place>, String> {
    let current = observed.newest_sandbox();
    let attempt = match (new, current) {
        (Some(new), _) => new.attempt,
        (None, Some(current)) => current.attempt,
        (None, None) => return Ok(None),
    };
    let failed = |text: String| format!("Failed to create pod sandbox: {text}");
    let config = configure_sandbox(context, pod, attempt, new.is_some())
        .await
        .map_err(|e| failed(e.message))?;
    let (id, ips) = match (new, current) {
        (None, Some(current)) => (current.id.clone(), Some(current.ips.clone())),
        (Some(_), _) | (None, None) => {
            let log_dir = context.log_dir(pod);
            make_dir(&log_dir).await.map_err(failed)?;
            done.has_acted = true;
            (run_sandbox(context, &config).await.map_err(failed)?, None)
        }
    };
    let ips = match ips {
        _ if pod.is_host_network() => context.facts.node_ips.clone(),
        Some(ips) => ips,
        None => {
            let status = context.runtime.sandbox_status(&id).await;
            let status = status.map_err(|error| {
                format!("Unable to get pod sandbox status: {}", error.message())
            })?;
            status.ips
        }
    };
    Ok(Some(Place { id, config, ips }))
}

/// Warnings of its DNS are told for a new sandbox only: for the one that runs they have been.
async fn configure_sandbox(
    context: &Context,
    pod: &Pod,
    attempt: u32,
    is_new: bool,
) -> Result<PodSandboxConfig, ConfigError> {
    let host = dns::read_host(&context.facts.dns)?;
    let facts = &context.facts;
    let (dns, warnings) = dns::dns_config(pod, &facts.dns, &facts.node_ips, &host);
    for warning in warnings
        .into_iter()
        .filter(|warning| is_new && !warning.is_of_node)
    {
        context.event(pod, None, Level::Warning, warning.reason, warning.message);
    }
    let parent = context.cgroups.parent_for_runtime(pod);
    sandbox_config(
        pod,
        attempt,
        &context.facts,
        &parent,
        &context.log_dir(pod),
        dns,
    )
}

async fn run_sandbox(context: &Context, config: &PodSandboxConfig) -> Result<SandboxId, String> {
    let _permit = permit(context).await;
    metrics::STARTED_PODS.add(1, &[]);
    let began = Instant::now();
    let made = context.runtime.run_sandbox(config.clone(), "").await;
    let labels = &[("runtime_handler", "")];
    metrics::RUN_PODSANDBOX_DURATION.record(began.elapsed().as_secs_f64(), labels);
    made.map_err(|error| {
        metrics::STARTED_PODS_ERRORS.add(1, &[]);
        metrics::RUN_PODSANDBOX_ERRORS.add(1, labels);
        error.message()
    })
}

/// A place among the starts in flight; the gauge follows.
struct Permit<'a> {
    context: &'a Context,
    permit: Option<tokio::sync::SemaphorePermit<'a>>,
}

impl Permit<'_> {
    fn show(&self) {
        let free = self.context.starts.available_permits();
        #[expect(clippy::cast_precision_loss, reason = "a handful")]
        let in_flight = self.context.settings.max_starts.saturating_sub(free) as f64;
        metrics::STARTS_IN_FLIGHT.set(in_flight, &[]);
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        drop(self.permit.take());
        self.show();
    }
}

async fn permit(context: &Context) -> Permit<'_> {
    let permit = context.starts.acquire().await.expect("nobody closes it");
    let permit = Permit {
        context,
        permit: Some(permit),
    };
    permit.show();
    permit
}

/// Starts one container, or says why not. False: it does not run.
async fn start_container(
    worker: &mut Worker,
    start: &Start,
    place: &Place,
    observed: &RuntimePod,
    done: &mut Done,
) -> bool {
    let (context, pod) = (worker.context().clone(), worker.pod().clone());
    let kind = container_type(start.role);
    if let Some(wait) = back_off(worker, start, observed, clock::wall_now()) {
        done.retry(wait);
        return false;
    }
    metrics::STARTED_CONTAINERS.add(1, &[("container_type", kind)]);
    // A pull may take minutes; a pod that is to go does not wait for it.
    let image = tokio::select! {
        () = worker.mailbox().stop_came() => return false,
        image = ensure_image(&context, &pod, start, place) => image,
    };
    let started = match image {
        Ok(image) => try_start(&context, &pod, start, image, place, observed, done).await,
        Err(fault) => Err(fault),
    };
    match started {
        Ok(()) => {
            worker.waiting.remove(&start.name);
            true
        }
        Err(fault) => {
            let code = fault.waiting.reason.as_str();
            metrics::STARTED_CONTAINERS_ERRORS
                .add(1, &[("container_type", kind), ("code", known_code(code))]);
            if let Some(text) = &fault.event {
                let message = format!("Error: {text}");
                context.event(
                    &pod,
                    Some(&start.name),
                    Level::Warning,
                    event::FAILED,
                    message,
                );
            }
            worker.waiting.insert(start.name.clone(), fault.waiting);
            done.retry(fault.retry_in);
            false
        }
    }
}

/// Asks the crash-loop back-off; how long it still takes, with the event and the waiting reason.
fn back_off(
    worker: &mut Worker,
    start: &Start,
    observed: &RuntimePod,
    now: Timestamp,
) -> Option<Duration> {
    let (context, pod) = (worker.context().clone(), worker.pod().clone());
    let (spec, _) = spec_of(&pod, &start.name)?;
    let last = observed.newest(&start.name)?;
    let finished_at = last.state.exit()?.finished_at;
    let key = backoff::Key::new(&pod, spec);
    match worker.backoff.check(&key, finished_at, now) {
        Decision::StartNow => None,
        Decision::Wait { until, current } => {
            // Once for each end: its time changes a little when the runtime's record comes.
            if worker.told.insert(start.name.clone(), last.id.clone()) != Some(last.id.clone()) {
                let message = backoff::event_message(&start.name, &pod);
                context.event(
                    &pod,
                    Some(&start.name),
                    Level::Warning,
                    event::BACK_OFF,
                    message,
                );
            }
            worker.waiting.insert(
                start.name.clone(),
                Waiting {
                    reason: waiting::CRASH_LOOP_BACK_OFF.to_owned(),
                    message: backoff::waiting_message(current, &start.name, &pod),
                },
            );
            let wait = until.duration_since(now);
            Some(Duration::try_from(wait).unwrap_or_default())
        }
    }
}

/// Why a container does not run.
struct Fault {
    waiting: Waiting,
    /// Text of the event `Failed`; none where the part that failed has told already.
    event: Option<String>,
    retry_in: Duration,
}

impl Fault {
    fn new(reason: &str, message: String) -> Self {
        Self {
            event: Some(message.clone()),
            waiting: Waiting {
                reason: reason.to_owned(),
                message,
            },
            retry_in: RETRY,
        }
    }
}

async fn ensure_image(
    context: &Context,
    pod: &Pod,
    start: &Start,
    place: &Place,
) -> Result<Ensured, Fault> {
    let spec = spec_to_start(pod, start)?;
    let tell = |level: Level, reason: &'static str, message: String| {
        context.event(pod, Some(&start.name), level, reason, message);
    };
    context
        .images
        .ensure(pod, spec, Some(&place.config), &tell)
        .await
        .map_err(|error| Fault {
            event: None,
            retry_in: error.retry_after.unwrap_or(RETRY),
            waiting: Waiting {
                reason: error.reason.to_owned(),
                message: error.message,
            },
        })
}

fn config_fault(text: String) -> Fault {
    Fault::new(waiting::CREATE_CONTAINER_CONFIG_ERROR, text)
}

fn spec_to_start<'a>(pod: &'a Pod, start: &Start) -> Result<&'a ContainerSpec, Fault> {
    match spec_of(pod, &start.name) {
        Some((spec, _)) => Ok(spec),
        None => Err(config_fault("the pod has no such container".to_owned())),
    }
}

async fn try_start(
    context: &Arc<Context>,
    pod: &Pod,
    start: &Start,
    image: Ensured,
    place: &Place,
    observed: &RuntimePod,
    done: &mut Done,
) -> Result<(), Fault> {
    let spec = spec_to_start(pod, start)?;
    let tell = |level: Level, reason: &'static str, message: String| {
        context.event(pod, Some(&start.name), level, reason, message);
    };
    let log_dir = context.log_dir(pod).join(&start.name);
    make_dir(&log_dir).await.map_err(config_fault)?;
    let restart_count = match start.reuse_count {
        Some(count) => count,
        None => restart_count(observed, &start.name, &log_dir).await,
    };
    let envs = env::environment(pod, spec, &place.ips, &context.facts)
        .map_err(|error| config_fault(error.message))?;
    let mounts = mounts::prepare(
        &context.volumes,
        pod,
        spec,
        &envs,
        &place.ips,
        &context.facts,
    )
    .await
    .map_err(|error| config_fault(error.message))?;
    let user = ImageUser {
        uid: image.uid,
        username: image.username,
    };
    let config = container_config(ContainerInput {
        pod,
        container: spec,
        restart_count,
        image: &image.image_ref,
        image_user: &user,
        facts: &context.facts,
        mounts,
        envs,
        hash: crate::source::container_hash(spec),
    })
    .map_err(|error| config_fault(error.message))?;

    let _permit = permit(context).await;
    done.has_acted = true;
    let id = context
        .runtime
        .create_container(&place.id, config, &place.config)
        .await
        .map_err(|error| Fault::new(waiting::CREATE_CONTAINER_ERROR, error.message()))?;
    tell(
        Level::Normal,
        event::CREATED,
        "Container created".to_owned(),
    );
    context
        .runtime
        .start_container(&id)
        .await
        .map_err(|error| Fault::new(waiting::RUN_CONTAINER_ERROR, error.message()))?;
    tell(
        Level::Normal,
        event::STARTED,
        "Container started".to_owned(),
    );
    let log = log_dir.join(format!("{restart_count}.log"));
    let link = gc::log_link_name(pod.key(), &start.name, &id);
    link_log(&log, &context.settings.container_logs.join(link)).await;
    Ok(())
}

/// The count of the instance to be made: one more than the last one's; without a record, one more
/// than the newest log file says, so that counts survive a runtime that lost its records (COND-16).
async fn restart_count(observed: &RuntimePod, name: &str, log_dir: &Path) -> u32 {
    if let Some(last) = observed.newest(name) {
        return last.restart_count + 1;
    }
    let Ok(mut files) = tokio::fs::read_dir(log_dir).await else {
        return 0;
    };
    let mut next = 0;
    while let Ok(Some(file)) = files.next_entry().await {
        let name = file.file_name();
        let count = name
            .to_str()
            .and_then(|name| name.split_once(".log")?.0.parse::<u32>().ok());
        next = next.max(count.map_or(0, |count| count + 1));
    }
    next
}

async fn make_dir(path: &Path) -> Result<(), String> {
    tokio::fs::create_dir_all(path)
        .await
        .map_err(|error| format!("make log directory {}: {error}", path.display()))
}

/// The link in the folder of all containers' logs, for collectors; only where there is a log file.
async fn link_log(log: &Path, link: &Path) {
    if !tokio::fs::try_exists(log).await.unwrap_or(false) {
        return;
    }
    if let Err(error) = tokio::fs::symlink(log, link).await
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        tracing::warn!(link = %link.display(), %error, "A container's log could not be linked");
    }
}

fn container_type(role: Role) -> &'static str {
    match role {
        Role::Init | Role::Sidecar => "init_container",
        Role::Regular => "container",
    }
}

/// Label values come from a closed set.
fn known_code(reason: &str) -> &'static str {
    waiting::ALL
        .iter()
        .find(|known| **known == reason)
        .copied()
        .unwrap_or("Other")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::id::{PodKey, PodUid};

    #[tokio::test]
    async fn counts_go_on_from_the_log_files_where_the_runtime_lost_its_records() {
        let dir = tempfile::tempdir().expect("a folder");
        for name in ["0.log", "3.log", "3.log.20260101-000000.gz", "other"] {
            std::fs::write(dir.path().join(name), "").expect("a file");
        }
        let nothing = RuntimePod::empty(PodUid::from("u"), PodKey::new("d", "p"));
        assert_eq!(restart_count(&nothing, "app", dir.path()).await, 4);
        assert_eq!(
            restart_count(&nothing, "app", &dir.path().join("none")).await,
            0
        );
    }
}
