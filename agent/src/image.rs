//! Images: policies, pulls one at a time, back-off (IMG-01 to IMG-06, IMG-14 to IMG-16).
//!
//! [`Images`] is asked before each start of a container and answers with what to hand to the
//! runtime, or with a waiting reason. It owns the back-off of failed pulls, the bucket that bounds
//! their rate and the permits that bound how many run; it never retries by itself. What users are
//! told of goes to a callback, in upstream's words.
//!
//! Credentials are not there yet: pulls are anonymous, and pods with `imagePullSecrets` are refused
//! by their source.

mod backoff;
mod name;
pub(crate) mod reference;

use std::{
    fmt::Write as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::Container;
use tokio::{sync::Semaphore, time::Instant};

use self::backoff::{BackOff, Bucket};
use crate::{
    config::ImageSettings,
    cri::{self, api},
    metrics,
    types::{
        pod::Pod,
        reason::{event, waiting},
        timeline::Level,
    },
};

/// Told of each event: level, reason and message of upstream's.
pub trait Notify: Fn(Level, &'static str, String) + Send + Sync {}
impl<F: Fn(Level, &'static str, String) + Send + Sync> Notify for F {}

/// The one way in; clones share one state.
#[derive(Clone, Debug)]
pub struct Images(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    client: cri::Client,
    /// None: no bound on parallel pulls. Fair, so that pulls are made in the order of asking.
    permits: Option<Semaphore>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    backoff: BackOff,
    bucket: Option<Bucket>,
}

/// An image that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ensured {
    /// What CreateContainer gets as its image (KRT-14).
    pub image_ref: String,
    /// Exactly one of `uid` and `username` says whom the image runs as; root where the image does
    /// not say (upstream's getImageUser).
    pub uid: Option<i64>,
    pub username: String,
}

/// An image that cannot be had now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct PullError {
    /// The waiting reason of the container's status (`types::reason::waiting`).
    pub reason: &'static str,
    /// The waiting message of the container's status.
    pub message: String,
    /// When a pull may be tried again; none where no pull has failed.
    pub retry_after: Option<Duration>,
}

/// `imagePullPolicy`, which the source has filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr)]
enum Policy {
    Always,
    IfNotPresent,
    Never,
}

impl Policy {
    fn label(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::IfNotPresent => "ifnotpresent",
            Self::Never => "never",
        }
    }
}

/// What the metric of IMG-16 says of one request.
#[derive(Clone, Copy, Default)]
struct Seen {
    present_locally: Option<bool>,
    pull_required: Option<bool>,
}

impl Images {
    pub fn new(settings: &ImageSettings, client: cri::Client) -> Self {
        Self(Arc::new(Inner {
            client,
            permits: settings.max_parallel_pulls.map(Semaphore::new),
            state: Mutex::new(State {
                backoff: BackOff::default(),
                bucket: Bucket::new(settings.pull_qps, settings.pull_burst),
            }),
        }))
    }

    /// Sees to it that the container's image is there, by its pull policy. Tells `notify` all that
    /// happens, up to the last event of a failure, "Error: REASON".
    ///
    /// May take as long as a pull takes; dropping the future gives the pull up.
    pub async fn ensure(
        &self,
        pod: &Pod,
        container: &Container,
        sandbox: Option<&api::PodSandboxConfig>,
        notify: &impl Notify,
    ) -> Result<Ensured, PullError> {
        let policy = container
            .image_pull_policy
            .as_deref()
            .and_then(|policy| policy.parse().ok())
            .unwrap_or(Policy::IfNotPresent);
        let mut seen = Seen::default();
        let result = self
            .0
            .ensure(pod, container, policy, sandbox, notify, &mut seen)
            .await;
        let word =
            |known: Option<bool>| known.map_or("unknown", |is| if is { "true" } else { "false" });
        metrics::IMAGE_ENSURE_REQUESTS.add(
            1,
            &[
                ("pull_policy", policy.label()),
                ("present_locally", word(seen.present_locally)),
                ("pull_required", word(seen.pull_required)),
            ],
        );
        if let Err(error) = &result {
            notify(
                Level::Warning,
                event::FAILED,
                format!("Error: {}", error.reason),
            );
        }
        result
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ensure(
        &self,
        pod: &Pod,
        container: &Container,
        policy: Policy,
        sandbox: Option<&api::PodSandboxConfig>,
        notify: &impl Notify,
        seen: &mut Seen,
    ) -> Result<Ensured, PullError> {
        let requested = container.image.as_deref().unwrap_or_default();
        let image = name::with_default_tag(requested).map_err(|error| {
            let message = format!("Failed to apply default image tag {requested:?}: {error}");
            notify(Level::Warning, event::INSPECT_FAILED, message.clone());
            refused(waiting::INVALID_IMAGE_NAME, message)
        })?;

        if policy != Policy::Always {
            let found = self.look_up(pod, &image).await.map_err(|error| {
                // Upstream's quotes are empty, too: what it prints there is what it failed to get.
                let message = format!("Failed to inspect image \"\": {}", text(&error));
                notify(Level::Warning, event::INSPECT_FAILED, message.clone());
                refused(waiting::IMAGE_INSPECT_ERROR, message)
            })?;
            seen.present_locally = Some(found.is_some());
            if let Some(record) = found {
                seen.pull_required = Some(false);
                let message = format!(
                    "Container image {requested:?} already present on machine and can be accessed by the pod"
                );
                notify(Level::Normal, event::PULLED, message);
                return Ok(ensured(record.id.clone(), Some(&record)));
            }
            if policy == Policy::Never {
                let message = format!(
                    "Container image {requested:?} is not present with pull policy of Never"
                );
                notify(Level::Warning, event::ERR_IMAGE_NEVER_PULL, message.clone());
                return Err(refused(waiting::ERR_IMAGE_NEVER_PULL, message));
            }
        }
        seen.pull_required = Some(true);
        self.pull(pod, requested, &image, sandbox, notify).await
    }

    async fn look_up(
        &self,
        pod: &Pod,
        image: &str,
    ) -> Result<Option<cri::ImageRecord>, cri::Error> {
        let none = std::collections::BTreeMap::new();
        let annotations = pod.metadata().annotations.as_ref().unwrap_or(&none);
        self.client.image_status(image, annotations).await
    }

    async fn pull(
        &self,
        pod: &Pod,
        requested: &str,
        image: &str,
        sandbox: Option<&api::PodSandboxConfig>,
        notify: &impl Notify,
    ) -> Result<Ensured, PullError> {
        let started = Instant::now();
        let backing_off = self.state().backoff.check(pod.uid(), requested, started);
        if let Some(wait) = backing_off {
            let mut message = format!("Back-off pulling image {requested:?}");
            notify(Level::Normal, event::BACK_OFF, message.clone());
            if let Some(cause) = wait.cause {
                message = format!("{message}: {cause}");
            }
            return Err(PullError {
                reason: waiting::IMAGE_PULL_BACK_OFF,
                message,
                retry_after: Some(wait.left),
            });
        }

        let message = format!("Pulling image {requested:?}");
        notify(Level::Normal, event::PULLING, message);
        let (outcome, took) = self.pull_in_turn(pod, image, sandbox).await;
        match outcome {
            Err(error) => {
                let message = format!("Failed to pull image {requested:?}: {error}");
                notify(Level::Warning, event::FAILED, message);
                let (reason, message) = classify(requested, error);
                let cause = format!("{reason}: {message}");
                let now = Instant::now();
                let wait = self
                    .state()
                    .backoff
                    .failed(pod.uid(), requested, cause, now);
                Err(PullError {
                    reason,
                    message,
                    retry_after: Some(wait),
                })
            }
            Ok((image_ref, record)) => {
                let size = record.as_ref().map_or(0, |record| record.size);
                let in_all = started.elapsed();
                let message = format!(
                    "Successfully pulled image {requested:?} in {} ({} including waiting). Image size: {size} bytes.",
                    printed(took),
                    printed(in_all),
                );
                notify(Level::Normal, event::PULLED, message);
                metrics::IMAGE_PULL_DURATION.record(
                    in_all.as_secs_f64(),
                    &[("image_size_in_bytes", size_label(size))],
                );
                self.state().backoff.forget_old(Instant::now());
                Ok(ensured(image_ref, record.as_ref()))
            }
        }
    }

    /// Waits for its turn, pulls, and looks at what came. The time is without the waiting.
    async fn pull_in_turn(
        &self,
        pod: &Pod,
        image: &str,
        sandbox: Option<&api::PodSandboxConfig>,
    ) -> (Result<(String, Option<cri::ImageRecord>), String>, Duration) {
        let _permit = match &self.permits {
            None => None,
            Some(permits) => Some(permits.acquire().await.expect("never closed")),
        };
        let started = Instant::now();
        let may_pull = self
            .state()
            .bucket
            .as_mut()
            .is_none_or(|bucket| bucket.try_take(started));
        let outcome = if may_pull {
            self.pull_and_look(pod, image, sandbox).await
        } else {
            Err("pull QPS exceeded".to_owned())
        };
        (outcome, started.elapsed())
    }

    async fn pull_and_look(
        &self,
        pod: &Pod,
        image: &str,
        sandbox: Option<&api::PodSandboxConfig>,
    ) -> Result<(String, Option<cri::ImageRecord>), String> {
        let none = std::collections::BTreeMap::new();
        let annotations = pod.metadata().annotations.as_ref().unwrap_or(&none);
        let image_ref = self
            .client
            .pull_image(image, annotations, None, sandbox)
            .await
            .map_err(|error| text(&error))?;
        // Whom it runs as must be known, or a container that must not be root might be.
        let record = self
            .look_up(pod, image)
            .await
            .map_err(|error| text(&error))?;
        Ok((image_ref, record))
    }
}

fn refused(reason: &'static str, message: String) -> PullError {
    PullError {
        reason,
        message,
        retry_after: None,
    }
}

fn ensured(image_ref: String, record: Option<&cri::ImageRecord>) -> Ensured {
    let uid = record.and_then(|record| record.uid);
    let username = match (uid, record) {
        (None, Some(record)) => record.username.clone(),
        (Some(_), _) | (None, None) => String::new(),
    };
    Ensured {
        image_ref,
        uid: if username.is_empty() {
            Some(uid.unwrap_or(0))
        } else {
            None
        },
        username,
    }
}

/// Upstream leaves the code out where it says nothing.
fn text(error: &cri::Error) -> String {
    match error {
        cri::Error::Refused {
            code: tonic::Code::Unknown,
            message,
            ..
        } => message.clone(),
        cri::Error::Refused { .. } | cri::Error::Endpoint { .. } | cri::Error::Answer { .. } => {
            error.rpc_text()
        }
    }
}

/// The waiting reason and message for a failed pull (IMG-15).
fn classify(requested: &str, error: String) -> (&'static str, String) {
    for (reason, because) in [
        (waiting::REGISTRY_UNAVAILABLE, "the registry is unavailable"),
        (
            waiting::SIGNATURE_VALIDATION_FAILED,
            "the signature validation failed",
        ),
    ] {
        if let Some(rest) = error.strip_prefix(reason) {
            let message = format!("image pull failed for {requested} because {because}{rest}");
            return (reason, message);
        }
    }
    (waiting::ERR_IMAGE_PULL, error)
}

/// The label of IMG-14; "" where the size is not known.
fn size_label(bytes: u64) -> &'static str {
    const MIB: u64 = 1024 * 1024;
    const GIB: u64 = 1024 * MIB;
    const LABELS: [(u64, &str); 12] = [
        (100 * GIB, "GT100GB"),
        (60 * GIB, "60GB-100GB"),
        (40 * GIB, "40GB-60GB"),
        (30 * GIB, "30GB-40GB"),
        (20 * GIB, "20GB-30GB"),
        (10 * GIB, "10GB-20GB"),
        (5 * GIB, "5GB-10GB"),
        (GIB, "1GB-5GB"),
        (500 * MIB, "500MB-1GB"),
        (100 * MIB, "100MB-500MB"),
        (10 * MIB, "10MB-100MB"),
        (0, "0-10MB"),
    ];
    LABELS
        .iter()
        .find(|(above, _)| bytes > *above)
        .map_or("", |(_, label)| label)
}

/// As Go prints a duration that was cut to milliseconds: `1m2.5s`, `450ms`, `0s`.
fn printed(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    let (seconds, rest) = (milliseconds / 1000, milliseconds % 1000);
    if seconds == 0 {
        return if rest == 0 {
            "0s".to_owned()
        } else {
            format!("{rest}ms")
        };
    }
    let mut out = String::new();
    if seconds >= 3600 {
        let _ = write!(out, "{}h", seconds / 3600); // a String takes everything
    }
    if seconds >= 60 {
        let _ = write!(out, "{}m", seconds / 60 % 60);
    }
    let _ = write!(out, "{}", seconds % 60);
    if rest > 0 {
        let fraction = format!("{rest:03}");
        let _ = write!(out, ".{}", fraction.trim_end_matches('0'));
    }
    out.push('s');
    out
}

#[cfg(test)]
mod tests;
