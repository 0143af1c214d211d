//! The few calls of the container runtime that the bench makes itself: all of a pod's for the
//! floor, and for every subject the events and the main processes' pids.

use std::path::Path;

use anyhow::{Context as _, Result};
use hyper_util::rt::TokioIo;
use proto::cri::v1::{self as api, runtime_service_client::RuntimeServiceClient};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

/// Enough for a listing of all that a turn makes.
const MAX_MESSAGE: usize = 16 * 1024 * 1024;

/// A connection; clones share it.
#[derive(Clone, Debug)]
pub struct Cri(RuntimeServiceClient<Channel>);

impl Cri {
    /// Connects at the first call.
    pub fn new(socket: &Path) -> Self {
        let socket = socket.to_owned();
        let connect = service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let channel =
            Endpoint::from_static("http://localhost").connect_with_connector_lazy(connect);
        Self(RuntimeServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE))
    }

    /// The runtime's version; an error while it does not answer.
    pub async fn version(&self) -> Result<String> {
        let request = api::VersionRequest::default();
        let answer = self.0.clone().version(request).await?;
        Ok(answer.into_inner().runtime_version)
    }

    pub async fn events(&self) -> Result<tonic::Streaming<api::ContainerEventResponse>> {
        let request = api::GetEventsRequest::default();
        let stream = self.0.clone().get_container_events(request).await;
        Ok(stream.context("opening the runtime's events")?.into_inner())
    }

    /// The pid of the container's main process, as this box sees it.
    pub async fn main_pid(&self, container: &str) -> Result<i32> {
        let request = api::ContainerStatusRequest {
            container_id: container.to_owned(),
            verbose: true,
        };
        let answer = self.0.clone().container_status(request).await;
        let answer = answer.context("asking for a container")?.into_inner();
        let info = answer.info.get("info").context("no info of a container")?;
        let info: serde_json::Value = serde_json::from_str(info)?;
        let pid = info["pid"].as_i64().filter(|&pid| pid > 0);
        Ok(pid.context("the container has no process")?.try_into()?)
    }

    /// Why the container ended, as the runtime says.
    pub async fn reason(&self, container: &str) -> Result<String> {
        let request = api::ContainerStatusRequest {
            container_id: container.to_owned(),
            verbose: false,
        };
        let answer = self.0.clone().container_status(request).await;
        let answer = answer.context("asking for a container")?.into_inner();
        Ok(answer.status.context("no status of a container")?.reason)
    }

    /// The names of the pods whose sandboxes are there; only of those that are ready, or all.
    pub async fn sandboxes(&self, only_ready: bool) -> Result<Vec<String>> {
        let ready = api::PodSandboxStateValue {
            state: api::PodSandboxState::SandboxReady.into(),
        };
        let request = api::ListPodSandboxRequest {
            filter: Some(api::PodSandboxFilter {
                state: only_ready.then_some(ready),
                ..Default::default()
            }),
        };
        let answer = self.0.clone().list_pod_sandbox(request).await?;
        let names = answer.into_inner().items.into_iter();
        Ok(names
            .filter_map(|sandbox| sandbox.metadata.map(|metadata| metadata.name))
            .collect())
    }

    /// Returns the sandbox's id.
    pub async fn run_sandbox(&self, config: api::PodSandboxConfig) -> Result<String> {
        let request = api::RunPodSandboxRequest {
            config: Some(config),
            ..Default::default()
        };
        let answer = self.0.clone().run_pod_sandbox(request).await;
        Ok(answer
            .context("running a sandbox")?
            .into_inner()
            .pod_sandbox_id)
    }

    /// Returns the container's id.
    pub async fn create(
        &self,
        sandbox: &str,
        config: api::ContainerConfig,
        pod: api::PodSandboxConfig,
    ) -> Result<String> {
        let request = api::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(pod),
        };
        let answer = Box::pin(self.0.clone().create_container(request)).await;
        Ok(answer
            .context("creating a container")?
            .into_inner()
            .container_id)
    }

    pub async fn start(&self, container: &str) -> Result<()> {
        let request = api::StartContainerRequest {
            container_id: container.to_owned(),
        };
        let answer = self.0.clone().start_container(request).await;
        answer.context("starting a container")?;
        Ok(())
    }

    /// With its containers; they are killed after two seconds.
    pub async fn stop_sandbox(&self, sandbox: &str) -> Result<()> {
        let request = api::StopPodSandboxRequest {
            pod_sandbox_id: sandbox.to_owned(),
        };
        let answer = self.0.clone().stop_pod_sandbox(request).await;
        answer.context("stopping a sandbox")?;
        Ok(())
    }

    pub async fn remove_sandbox(&self, sandbox: &str) -> Result<()> {
        let request = api::RemovePodSandboxRequest {
            pod_sandbox_id: sandbox.to_owned(),
        };
        let answer = self.0.clone().remove_pod_sandbox(request).await;
        answer.context("removing a sandbox")?;
        Ok(())
    }
}
