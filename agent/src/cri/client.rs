//! The client: deadlines, metrics and checks around each call.

use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
    sync::Arc,
    time::Duration,
};

use proto::cri::v1::{
    self as api, image_service_client::ImageServiceClient,
    runtime_service_client::RuntimeServiceClient,
};
use tokio::time::Instant;
use tonic::{Request, Response, Status, transport::Channel};

use super::{
    Call, Error, Events, ExecOutput, ImageFs, ImageRecord, ListedPod, RuntimeStatus, Version,
    convert, endpoint, events, labels, turns::Turns,
};
use crate::{
    config::{CgroupDriver, RuntimeSettings},
    metrics,
    types::{
        id::{ContainerId, PodKey, PodUid, SandboxId},
        runtime::{Container, Sandbox},
    },
};

/// KRT-19: enough for listings of some ten thousand containers.
const MAX_MESSAGE: usize = 16 * 1024 * 1024;
/// The version of the interface that is asked for, and must be answered (KRT-19).
const API_VERSION: &str = "0.1.0";
/// How long opening the event stream waits for a refusal. A runtime that has the stream says
/// nothing until its first event, one that lacks it says so at once.
const REFUSAL_WAIT: Duration = Duration::from_millis(250);

/// A connection to the runtime, and to its image service. Clones share the connections.
///
/// Calls fail at once while the runtime is away ([`Error::is_unavailable`]); the connection comes
/// back by itself. Each call has a deadline (KRT-23): `runtimeRequestTimeout`, unless its method
/// says otherwise. Dropping a call's future cancels it.
#[derive(Clone, Debug)]
pub struct Client {
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
    timeout: Duration,
    /// For messages: the endpoint as it was given.
    endpoint: Arc<str>,
    removals: Turns,
}

/// Records a call in the metrics of KRT-18.
fn record<T>(call: Call, started: Instant, result: &Result<T, Error>) {
    let labels: metrics::Labels<'_> = &[("operation_type", call.operation())];
    metrics::RUNTIME_OPERATIONS.add(1, labels);
    metrics::RUNTIME_OPERATIONS_DURATION.record(started.elapsed().as_secs_f64(), labels);
    if result.is_err() {
        metrics::RUNTIME_OPERATIONS_ERRORS.add(1, labels);
    }
}

/// Makes one call: `send` with the request, within `deadline` (none: as long as it takes), and
/// `read` on its answer.
async fn call<Q, A, T, F>(
    call: Call,
    deadline: Option<Duration>,
    request: Q,
    send: impl FnOnce(Request<Q>) -> F,
    read: impl FnOnce(A) -> Result<T, Error>,
) -> Result<T, Error>
where
    F: Future<Output = Result<Response<A>, Status>>,
{
    let started = Instant::now();
    let mut request = Request::new(request);
    // Boxed: what is sent is large, and callers hold several of these at once.
    let answer = match deadline {
        None => Box::pin(send(request)).await,
        Some(deadline) => {
            // The runtime's clock runs a little longer, so that it is always ours that ends the
            // call, with our words.
            request.set_timeout(deadline.saturating_add(Duration::from_secs(1)));
            match tokio::time::timeout(deadline, Box::pin(send(request))).await {
                Ok(answer) => answer,
                Err(_) => {
                    let late = Err(Error::deadline(call, deadline));
                    record(call, started, &late);
                    return late;
                }
            }
        }
    };
    let result = answer
        .map_err(|status| Error::from_status(call, &status))
        .and_then(|response| read(response.into_inner()));
    record(call, started, &result);
    result
}

fn id<T: From<String>>(text: String, call: Call, what: &'static str) -> Result<T, Error> {
    convert::present(text)
        .map(T::from)
        .ok_or(Error::Answer { call, what })
}

fn nothing<A>(_: A) -> Result<(), Error> {
    Ok(())
}

/// Whole seconds of a wait, rounded up: never shorter than asked for.
fn seconds(wait: Duration) -> i64 {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

fn spec(image: &str, annotations: &BTreeMap<String, String>) -> api::ImageSpec {
    api::ImageSpec {
        image: image.to_owned(),
        annotations: annotations.clone().into_iter().collect(),
        ..Default::default()
    }
}

impl Client {
    /// Does no I/O; must be called within a tokio runtime. An endpoint that is none is the only
    /// error.
    pub fn new(settings: &RuntimeSettings) -> Result<Self, Error> {
        let runtime = endpoint::channel(&endpoint::parse(&settings.endpoint)?);
        let images = match &settings.image_endpoint {
            Some(other) if *other != settings.endpoint => {
                endpoint::channel(&endpoint::parse(other)?)
            }
            Some(_) | None => runtime.clone(),
        };
        Ok(Self {
            runtime: RuntimeServiceClient::new(runtime).max_decoding_message_size(MAX_MESSAGE),
            images: ImageServiceClient::new(images).max_decoding_message_size(MAX_MESSAGE),
            timeout: settings.request_timeout,
            endpoint: settings.endpoint.as_str().into(),
            removals: Turns::default(),
        })
    }

    /// The same connection, for calls that are given up after `longest` if that is shorter.
    pub fn with_timeout(&self, longest: Duration) -> Self {
        Self {
            timeout: self.timeout.min(longest),
            ..self.clone()
        }
    }

    /// The runtime's endpoint, as it was given.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The runtime's name and version. A runtime that leaves out one of four fields, or speaks
    /// another version of the interface, is an error.
    pub async fn version(&self) -> Result<Version, Error> {
        let mut client = self.runtime.clone();
        let request = api::VersionRequest {
            version: API_VERSION.to_owned(),
        };
        call(
            Call::Version,
            Some(self.timeout),
            request,
            |request| async move { client.version(request).await },
            |answer: api::VersionResponse| {
                let wrong = |what| Error::Answer {
                    call: Call::Version,
                    what,
                };
                if answer.version != API_VERSION {
                    return Err(wrong("a version other than 0.1.0"));
                }
                if answer.runtime_name.is_empty()
                    || answer.runtime_version.is_empty()
                    || answer.runtime_api_version.is_empty()
                {
                    return Err(wrong(
                        "no runtime_name, runtime_version or runtime_api_version",
                    ));
                }
                Ok(Version {
                    runtime_name: answer.runtime_name,
                    runtime_version: answer.runtime_version,
                    runtime_api_version: answer.runtime_api_version,
                })
            },
        )
        .await
    }

    pub async fn status(&self) -> Result<RuntimeStatus, Error> {
        let mut client = self.runtime.clone();
        call(
            Call::Status,
            Some(self.timeout),
            api::StatusRequest { verbose: false },
            |request| async move { client.status(request).await },
            convert::runtime_status,
        )
        .await
    }

    /// The cgroup driver that the runtime uses; none where it does not say (containerd before
    /// 2.0).
    pub async fn runtime_config(&self) -> Result<Option<CgroupDriver>, Error> {
        let mut client = self.runtime.clone();
        let answer = call(
            Call::RuntimeConfig,
            Some(self.timeout),
            api::RuntimeConfigRequest {},
            |request| async move { client.runtime_config(request).await },
            |answer: api::RuntimeConfigResponse| {
                Ok(answer.linux.map(|linux| match linux.cgroup_driver() {
                    api::CgroupDriver::Systemd => CgroupDriver::Systemd,
                    api::CgroupDriver::Cgroupfs => CgroupDriver::Cgroupfs,
                }))
            },
        )
        .await;
        match answer {
            Err(error) if error.is_unimplemented() => Ok(None),
            answer => answer,
        }
    }

    /// Tells the runtime the range of pods' addresses.
    pub async fn update_runtime_config(&self, pod_cidr: &str) -> Result<(), Error> {
        let mut client = self.runtime.clone();
        let request = api::UpdateRuntimeConfigRequest {
            runtime_config: Some(api::RuntimeConfig {
                network_config: Some(api::NetworkConfig {
                    pod_cidr: pod_cidr.to_owned(),
                }),
            }),
        };
        call(
            Call::UpdateRuntimeConfig,
            Some(self.timeout),
            request,
            |request| async move { client.update_runtime_config(request).await },
            nothing,
        )
        .await
    }

    /// Creates and starts a sandbox. Has twice the usual time (KRT-23). `handler` is "" for the
    /// runtime's default.
    pub async fn run_sandbox(
        &self,
        config: api::PodSandboxConfig,
        handler: &str,
    ) -> Result<SandboxId, Error> {
        let mut client = self.runtime.clone();
        let started = Instant::now();
        let request = api::RunPodSandboxRequest {
            config: Some(config),
            runtime_handler: handler.to_owned(),
        };
        let result = call(
            Call::RunPodSandbox,
            Some(self.timeout.saturating_mul(2)),
            request,
            |request| async move { client.run_pod_sandbox(request).await },
            |answer: api::RunPodSandboxResponse| {
                id(answer.pod_sandbox_id, Call::RunPodSandbox, "no id")
            },
        )
        .await;
        let labels: metrics::Labels<'_> = &[("runtime_handler", handler)];
        metrics::RUN_PODSANDBOX_DURATION.record(started.elapsed().as_secs_f64(), labels);
        if result.is_err() {
            metrics::RUN_PODSANDBOX_ERRORS.add(1, labels);
        }
        result
    }

    /// Stops what runs in the sandbox and frees its network; may be repeated.
    pub async fn stop_sandbox(&self, sandbox: &SandboxId) -> Result<(), Error> {
        let mut client = self.runtime.clone();
        let request = api::StopPodSandboxRequest {
            pod_sandbox_id: sandbox.to_string(),
        };
        call(
            Call::StopPodSandbox,
            Some(self.timeout),
            request,
            |request| async move { client.stop_pod_sandbox(request).await },
            nothing,
        )
        .await
    }

    /// Removes the sandbox with all its containers; may be repeated.
    pub async fn remove_sandbox(&self, sandbox: &SandboxId) -> Result<(), Error> {
        let mut client = self.runtime.clone();
        let request = api::RemovePodSandboxRequest {
            pod_sandbox_id: sandbox.to_string(),
        };
        call(
            Call::RemovePodSandbox,
            Some(self.timeout),
            request,
            |request| async move { client.remove_pod_sandbox(request).await },
            nothing,
        )
        .await
    }

    pub async fn sandbox_status(&self, sandbox: &SandboxId) -> Result<Sandbox, Error> {
        self.read_sandbox(sandbox, false, |answer| convert::sandbox(answer.status))
            .await
    }

    /// The pid of the sandbox's pause process, as the runtime sees it; none where the runtime does
    /// not tell, or there is none.
    pub async fn sandbox_pid(&self, sandbox: &SandboxId) -> Result<Option<u32>, Error> {
        self.read_sandbox(sandbox, true, |answer| Ok(convert::pid(&answer.info)))
            .await
    }

    async fn read_sandbox<T>(
        &self,
        sandbox: &SandboxId,
        verbose: bool,
        read: impl FnOnce(api::PodSandboxStatusResponse) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut client = self.runtime.clone();
        let request = api::PodSandboxStatusRequest {
            pod_sandbox_id: sandbox.to_string(),
            verbose,
        };
        call(
            Call::PodSandboxStatus,
            Some(self.timeout),
            request,
            |request| async move { client.pod_sandbox_status(request).await },
            read,
        )
        .await
    }

    pub async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: api::ContainerConfig,
        sandbox_config: &api::PodSandboxConfig,
    ) -> Result<ContainerId, Error> {
        let mut client = self.runtime.clone();
        let request = api::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_string(),
            config: Some(config),
            sandbox_config: Some(sandbox_config.clone()),
        };
        call(
            Call::CreateContainer,
            Some(self.timeout),
            request,
            |request| async move { client.create_container(request).await },
            |answer: api::CreateContainerResponse| {
                id(answer.container_id, Call::CreateContainer, "no id")
            },
        )
        .await
    }

    pub async fn start_container(&self, container: &ContainerId) -> Result<(), Error> {
        let mut client = self.runtime.clone();
        let request = api::StartContainerRequest {
            container_id: container.to_string(),
        };
        call(
            Call::StartContainer,
            Some(self.timeout),
            request,
            |request| async move { client.start_container(request).await },
            nothing,
        )
        .await
    }

    /// SIGTERM (or the image's stop signal), then SIGKILL after `grace`; returns once it has
    /// stopped. Has `grace` on top of the usual time (KRT-23).
    pub async fn stop_container(
        &self,
        container: &ContainerId,
        grace: Duration,
    ) -> Result<(), Error> {
        let mut client = self.runtime.clone();
        let request = api::StopContainerRequest {
            container_id: container.to_string(),
            timeout: seconds(grace),
        };
        call(
            Call::StopContainer,
            Some(self.timeout.saturating_add(grace)),
            request,
            |request| async move { client.stop_container(request).await },
            nothing,
        )
        .await
    }

    /// Removes the container, by force if it runs; may be repeated, also while it is under way:
    /// containerd refuses a second removal then, so the second waits for the first.
    pub async fn remove_container(&self, container: &ContainerId) -> Result<(), Error> {
        let _turn = self.removals.take(container).await;
        let mut client = self.runtime.clone();
        let request = api::RemoveContainerRequest {
            container_id: container.to_string(),
        };
        call(
            Call::RemoveContainer,
            Some(self.timeout),
            request,
            |request| async move { client.remove_container(request).await },
            nothing,
        )
        .await
    }

    /// The container with `pid` none. `sandbox` is what the listing said: the CRI's status does
    /// not name it.
    pub async fn container_status(
        &self,
        container: &ContainerId,
        sandbox: &SandboxId,
    ) -> Result<Container, Error> {
        self.read_container(container, false, |answer| {
            convert::container(answer.status, sandbox)
        })
        .await
    }

    /// The container with its `pid`, as the runtime sees it: none where the runtime does not tell,
    /// or there is no process.
    pub async fn container_status_and_pid(
        &self,
        container: &ContainerId,
        sandbox: &SandboxId,
    ) -> Result<Container, Error> {
        self.read_container(container, true, |answer| {
            let pid = convert::pid(&answer.info);
            let container = convert::container(answer.status, sandbox)?;
            Ok(Container { pid, ..container })
        })
        .await
    }

    /// The pid of the container's main process, as the runtime sees it; none where the runtime
    /// does not tell, or there is no process.
    pub async fn container_pid(&self, container: &ContainerId) -> Result<Option<u32>, Error> {
        self.read_container(container, true, |answer| Ok(convert::pid(&answer.info)))
            .await
    }

    async fn read_container<T>(
        &self,
        container: &ContainerId,
        verbose: bool,
        read: impl FnOnce(api::ContainerStatusResponse) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut client = self.runtime.clone();
        let request = api::ContainerStatusRequest {
            container_id: container.to_string(),
            verbose,
        };
        call(
            Call::ContainerStatus,
            Some(self.timeout),
            request,
            |request| async move { client.container_status(request).await },
            read,
        )
        .await
    }

    /// Everything that the runtime has, by pod, in all states.
    pub async fn list_pods(&self) -> Result<Vec<ListedPod>, Error> {
        self.list(None).await
    }

    /// What the runtime has of one pod, found by the label `io.kubernetes.pod.uid`.
    pub async fn list_pod(&self, uid: &PodUid) -> Result<ListedPod, Error> {
        let pods = self.list(Some(uid)).await?;
        let pod = pods.into_iter().find(|pod| pod.uid == *uid);
        Ok(pod.unwrap_or_else(|| convert::empty(uid.clone(), PodKey::new("", ""))))
    }

    async fn list(&self, uid: Option<&PodUid>) -> Result<Vec<ListedPod>, Error> {
        let selector = uid.map_or_else(HashMap::new, |uid| {
            HashMap::from([(labels::POD_UID.to_owned(), uid.to_string())])
        });
        let mut client = self.runtime.clone();
        let sandboxes = call(
            Call::ListPodSandbox,
            Some(self.timeout),
            api::ListPodSandboxRequest {
                filter: Some(api::PodSandboxFilter {
                    label_selector: selector.clone(),
                    ..Default::default()
                }),
            },
            |request| async move { client.list_pod_sandbox(request).await },
            |answer: api::ListPodSandboxResponse| Ok(answer.items),
        );
        let mut client = self.runtime.clone();
        let containers = call(
            Call::ListContainers,
            Some(self.timeout),
            api::ListContainersRequest {
                filter: Some(api::ContainerFilter {
                    label_selector: selector,
                    ..Default::default()
                }),
            },
            |request| async move { client.list_containers(request).await },
            |answer: api::ListContainersResponse| Ok(answer.containers),
        );
        let (sandboxes, containers) = futures::future::try_join(sandboxes, containers).await?;
        Ok(convert::pods(sandboxes, containers))
    }

    /// Runs a command in the container to its end. A `timeout` of zero is none, and then the call
    /// has no deadline either.
    pub async fn exec_sync(
        &self,
        container: &ContainerId,
        command: Vec<String>,
        timeout: Duration,
    ) -> Result<ExecOutput, Error> {
        let mut client = self.runtime.clone();
        let deadline = (!timeout.is_zero()).then(|| self.timeout.saturating_add(timeout));
        let request = api::ExecSyncRequest {
            container_id: container.to_string(),
            cmd: command,
            timeout: seconds(timeout),
        };
        call(
            Call::ExecSync,
            deadline,
            request,
            |request| async move { client.exec_sync(request).await },
            |answer: api::ExecSyncResponse| {
                Ok(ExecOutput {
                    stdout: answer.stdout,
                    stderr: answer.stderr,
                    code: answer.exit_code,
                })
            },
        )
        .await
    }

    /// Makes the runtime write the container's log to a file of the same path, after that was
    /// renamed.
    pub async fn reopen_log(&self, container: &ContainerId) -> Result<(), Error> {
        let mut client = self.runtime.clone();
        let request = api::ReopenContainerLogRequest {
            container_id: container.to_string(),
        };
        call(
            Call::ReopenContainerLog,
            Some(self.timeout),
            request,
            |request| async move { client.reopen_container_log(request).await },
            nothing,
        )
        .await
    }

    /// Opens the runtime's event stream. A runtime that lacks it is [`Error::is_unimplemented`],
    /// here or (if it is slow to say so) as the stream's first item.
    pub async fn events(&self) -> Result<Events, Error> {
        let started = Instant::now();
        let mut client = self.runtime.clone();
        let opening = async move { client.get_container_events(api::GetEventsRequest {}).await };
        let mut opening: futures::future::BoxFuture<'static, events::Opened> = Box::pin(opening);
        let result = match tokio::time::timeout(REFUSAL_WAIT, &mut opening).await {
            Err(_) => Ok(Events::new(opening)),
            Ok(Ok(response)) => Ok(Events::new(async { Ok(response) })),
            Ok(Err(status)) => Err(Error::from_status(Call::GetContainerEvents, &status)),
        };
        record(Call::GetContainerEvents, started, &result);
        result
    }

    /// An image by its reference; none where the runtime does not have it. `annotations` are the
    /// pod's.
    pub async fn image_status(
        &self,
        image: &str,
        annotations: &BTreeMap<String, String>,
    ) -> Result<Option<ImageRecord>, Error> {
        let mut client = self.images.clone();
        let request = api::ImageStatusRequest {
            image: Some(spec(image, annotations)),
            verbose: false,
        };
        call(
            Call::ImageStatus,
            Some(self.timeout),
            request,
            |request| async move { client.image_status(request).await },
            |answer: api::ImageStatusResponse| match answer.image {
                None => Ok(None),
                Some(image) if image.id.is_empty() || image.size == 0 => Err(Error::Answer {
                    call: Call::ImageStatus,
                    what: "no id or size",
                }),
                Some(image) => Ok(Some(convert::image(image))),
            },
        )
        .await
    }

    /// Pulls an image and returns the runtime's reference of it. Has no deadline: the runtime ends
    /// a pull that makes no progress.
    pub async fn pull_image(
        &self,
        image: &str,
        annotations: &BTreeMap<String, String>,
        auth: Option<api::AuthConfig>,
        sandbox_config: Option<&api::PodSandboxConfig>,
    ) -> Result<String, Error> {
        let mut client = self.images.clone();
        let request = api::PullImageRequest {
            image: Some(spec(image, annotations)),
            auth,
            sandbox_config: sandbox_config.cloned(),
        };
        call(
            Call::PullImage,
            None,
            request,
            |request| async move { client.pull_image(request).await },
            |answer: api::PullImageResponse| id(answer.image_ref, Call::PullImage, "no image_ref"),
        )
        .await
    }

    pub async fn list_images(&self) -> Result<Vec<ImageRecord>, Error> {
        let mut client = self.images.clone();
        call(
            Call::ListImages,
            Some(self.timeout),
            api::ListImagesRequest { filter: None },
            |request| async move { client.list_images(request).await },
            |answer: api::ListImagesResponse| {
                Ok(answer.images.into_iter().map(convert::image).collect())
            },
        )
        .await
    }

    /// Removes an image with all its tags; may be repeated.
    pub async fn remove_image(&self, image: &str) -> Result<(), Error> {
        let mut client = self.images.clone();
        let request = api::RemoveImageRequest {
            image: Some(spec(image, &BTreeMap::new())),
        };
        call(
            Call::RemoveImage,
            Some(self.timeout),
            request,
            |request| async move { client.remove_image(request).await },
            nothing,
        )
        .await
    }

    /// Also the check that the image service is there (KRT-19).
    pub async fn image_fs_info(&self) -> Result<ImageFs, Error> {
        let mut client = self.images.clone();
        call(
            Call::ImageFsInfo,
            Some(self.timeout),
            api::ImageFsInfoRequest {},
            |request| async move { client.image_fs_info(request).await },
            |answer: api::ImageFsInfoResponse| {
                let each = |all: Vec<_>| all.into_iter().map(convert::fs_use).collect();
                Ok(ImageFs {
                    images: each(answer.image_filesystems),
                    containers: each(answer.container_filesystems),
                })
            },
        )
        .await
    }
}

#[cfg(test)]
mod tests;
