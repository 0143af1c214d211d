//! The fake's calls. What no test needs is not implemented, and says so as an old runtime would.

use std::collections::HashMap;

use futures::stream::{BoxStream, Pending};
use proto::cri::v1::{
    self as api, image_service_server::ImageService, runtime_service_server::RuntimeService,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::{FakeContainer, Fault, Service, World, lock};
use crate::cri::Call;

type Answer<T> = Result<Response<T>, Status>;
/// A stream that is never answered with.
type NoStream<T> = Pending<Result<T, Status>>;

impl Service {
    /// Notes the call, does what `effect` does to the world, and answers; or fails as a test
    /// wants it.
    async fn answer<T>(
        &self,
        call: Call,
        about: &str,
        effect: impl FnOnce(&mut World) -> Result<T, Status> + Send,
    ) -> Answer<T> {
        let fault = {
            let mut world = lock(&self.0);
            world.calls.push((call, about.to_owned()));
            let faults = world.faults.entry(call).or_default();
            (!faults.is_empty()).then(|| faults.remove(0))
        };
        match fault {
            Some(Fault::Fail(code, message)) => return Err(Status::new(code, message)),
            Some(Fault::Delay(delay)) => tokio::time::sleep(delay).await,
            Some(Fault::LoseAnswer) => {
                // The effect stays, whatever it would have answered.
                drop(effect(&mut lock(&self.0)));
                return std::future::pending().await;
            }
            None => {}
        }
        effect(&mut lock(&self.0)).map(Response::new)
    }
}

fn absent<T>() -> Answer<T> {
    Err(Status::unimplemented("the fake runtime lacks this call"))
}

fn no_such(kind: &str, id: &str) -> Status {
    Status::not_found(format!("no such {kind}: {id}"))
}

fn selected(labels: &HashMap<String, String>, selector: &HashMap<String, String>) -> bool {
    selector
        .iter()
        .all(|(name, value)| labels.get(name) == Some(value))
}

fn verbose(wanted: bool, pid: u32) -> HashMap<String, String> {
    if !wanted {
        return HashMap::new();
    }
    HashMap::from([(
        "info".to_owned(),
        format!(r#"{{"sandboxID":"x","pid":{pid}}}"#),
    )])
}

fn reference(image: Option<api::ImageSpec>) -> String {
    image.unwrap_or_default().image
}

#[tonic::async_trait]
impl RuntimeService for Service {
    async fn version(&self, _: Request<api::VersionRequest>) -> Answer<api::VersionResponse> {
        self.answer(Call::Version, "", |world| Ok(world.version.clone()))
            .await
    }

    async fn status(&self, _: Request<api::StatusRequest>) -> Answer<api::StatusResponse> {
        self.answer(Call::Status, "", |world| Ok(world.status.clone()))
            .await
    }

    async fn runtime_config(
        &self,
        _: Request<api::RuntimeConfigRequest>,
    ) -> Answer<api::RuntimeConfigResponse> {
        self.answer(Call::RuntimeConfig, "", |world| {
            let driver = world
                .cgroup_driver
                .ok_or_else(|| Status::unimplemented("unknown method RuntimeConfig"))?;
            let linux = api::LinuxRuntimeConfiguration {
                cgroup_driver: driver.into(),
            };
            Ok(api::RuntimeConfigResponse { linux: Some(linux) })
        })
        .await
    }

    async fn update_runtime_config(
        &self,
        request: Request<api::UpdateRuntimeConfigRequest>,
    ) -> Answer<api::UpdateRuntimeConfigResponse> {
        let config = request.into_inner().runtime_config.unwrap_or_default();
        let cidr = config.network_config.unwrap_or_default().pod_cidr;
        self.answer(Call::UpdateRuntimeConfig, &cidr, |_| {
            Ok(api::UpdateRuntimeConfigResponse {})
        })
        .await
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<api::RunPodSandboxRequest>,
    ) -> Answer<api::RunPodSandboxResponse> {
        let request = request.into_inner();
        let config = request.config.unwrap_or_default();
        let name = config.metadata.clone().unwrap_or_default().name;
        self.answer(Call::RunPodSandbox, &name, |world| {
            let id = world.new_id("sandbox");
            let options = config
                .linux
                .and_then(|linux| linux.security_context)
                .and_then(|context| context.namespace_options);
            let status = api::PodSandboxStatus {
                id: id.clone(),
                metadata: config.metadata,
                state: api::PodSandboxState::SandboxReady.into(),
                created_at: world.tick(),
                network: Some(api::PodSandboxNetworkStatus {
                    ip: "10.0.0.7".into(),
                    additional_ips: Vec::new(),
                }),
                linux: Some(api::LinuxPodSandboxStatus {
                    namespaces: Some(api::Namespace { options }),
                }),
                labels: config.labels,
                annotations: config.annotations,
                runtime_handler: request.runtime_handler,
            };
            world.sandboxes.insert(id.clone(), status);
            world.emit(&id, api::ContainerEventType::ContainerStartedEvent);
            Ok(api::RunPodSandboxResponse { pod_sandbox_id: id })
        })
        .await
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<api::StopPodSandboxRequest>,
    ) -> Answer<api::StopPodSandboxResponse> {
        let id = request.into_inner().pod_sandbox_id;
        self.answer(Call::StopPodSandbox, &id, |world| {
            if let Some(sandbox) = world.sandboxes.get_mut(&id) {
                sandbox.set_state(api::PodSandboxState::SandboxNotready);
                world.emit(&id, api::ContainerEventType::ContainerStoppedEvent);
            }
            Ok(api::StopPodSandboxResponse {})
        })
        .await
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<api::RemovePodSandboxRequest>,
    ) -> Answer<api::RemovePodSandboxResponse> {
        let id = request.into_inner().pod_sandbox_id;
        self.answer(Call::RemovePodSandbox, &id, |world| {
            world.sandboxes.remove(&id);
            world
                .containers
                .retain(|_, container| container.sandbox != id);
            Ok(api::RemovePodSandboxResponse {})
        })
        .await
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<api::PodSandboxStatusRequest>,
    ) -> Answer<api::PodSandboxStatusResponse> {
        let request = request.into_inner();
        let id = request.pod_sandbox_id;
        self.answer(Call::PodSandboxStatus, &id, |world| {
            let status = world
                .sandboxes
                .get(&id)
                .ok_or_else(|| no_such("sandbox", &id))?;
            Ok(api::PodSandboxStatusResponse {
                status: Some(status.clone()),
                info: verbose(request.verbose, 4000),
                ..Default::default()
            })
        })
        .await
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<api::ListPodSandboxRequest>,
    ) -> Answer<api::ListPodSandboxResponse> {
        let selector = request
            .into_inner()
            .filter
            .unwrap_or_default()
            .label_selector;
        self.answer(Call::ListPodSandbox, "", |world| {
            let items = world
                .sandboxes
                .values()
                .filter(|sandbox| selected(&sandbox.labels, &selector))
                .cloned()
                .map(|sandbox| api::PodSandbox {
                    id: sandbox.id,
                    metadata: sandbox.metadata,
                    state: sandbox.state,
                    created_at: sandbox.created_at,
                    labels: sandbox.labels,
                    annotations: sandbox.annotations,
                    runtime_handler: sandbox.runtime_handler,
                })
                .collect();
            Ok(api::ListPodSandboxResponse { items })
        })
        .await
    }

    async fn create_container(
        &self,
        request: Request<api::CreateContainerRequest>,
    ) -> Answer<api::CreateContainerResponse> {
        let request = request.into_inner();
        let config = request.config.unwrap_or_default();
        let name = config.metadata.clone().unwrap_or_default().name;
        self.answer(Call::CreateContainer, &name, |world| {
            let sandbox = request.pod_sandbox_id;
            if !world.sandboxes.contains_key(&sandbox) {
                return Err(no_such("sandbox", &sandbox));
            }
            let id = world.new_id("container");
            let folder = request.sandbox_config.unwrap_or_default().log_directory;
            let status = api::ContainerStatus {
                id: id.clone(),
                metadata: config.metadata,
                state: api::ContainerState::ContainerCreated.into(),
                created_at: world.tick(),
                image_ref: reference(config.image.clone()),
                image: config.image,
                labels: config.labels,
                annotations: config.annotations,
                mounts: config.mounts,
                log_path: format!("{folder}/{}", config.log_path),
                ..Default::default()
            };
            let container = FakeContainer {
                sandbox,
                status,
                pid: 0,
            };
            world.containers.insert(id.clone(), container);
            world.emit(&id, api::ContainerEventType::ContainerCreatedEvent);
            Ok(api::CreateContainerResponse { container_id: id })
        })
        .await
    }

    async fn start_container(
        &self,
        request: Request<api::StartContainerRequest>,
    ) -> Answer<api::StartContainerResponse> {
        let id = request.into_inner().container_id;
        self.answer(Call::StartContainer, &id, |world| {
            let started_at = world.tick();
            let pid = 5000 + world.made;
            let container = world
                .containers
                .get_mut(&id)
                .ok_or_else(|| no_such("container", &id))?;
            container.pid = pid;
            container
                .status
                .set_state(api::ContainerState::ContainerRunning);
            container.status.started_at = started_at;
            world.emit(&id, api::ContainerEventType::ContainerStartedEvent);
            Ok(api::StartContainerResponse {})
        })
        .await
    }

    async fn stop_container(
        &self,
        request: Request<api::StopContainerRequest>,
    ) -> Answer<api::StopContainerResponse> {
        let id = request.into_inner().container_id;
        self.answer(Call::StopContainer, &id, |world| {
            let container = world
                .containers
                .get(&id)
                .ok_or_else(|| no_such("container", &id))?;
            if container.status.state() == api::ContainerState::ContainerRunning {
                world.exit(&id, 137, "Error");
            }
            Ok(api::StopContainerResponse {})
        })
        .await
    }

    async fn remove_container(
        &self,
        request: Request<api::RemoveContainerRequest>,
    ) -> Answer<api::RemoveContainerResponse> {
        let id = request.into_inner().container_id;
        self.answer(Call::RemoveContainer, &id, |world| {
            world.emit(&id, api::ContainerEventType::ContainerDeletedEvent);
            world.containers.remove(&id);
            Ok(api::RemoveContainerResponse {})
        })
        .await
    }

    async fn container_status(
        &self,
        request: Request<api::ContainerStatusRequest>,
    ) -> Answer<api::ContainerStatusResponse> {
        let request = request.into_inner();
        let id = request.container_id;
        self.answer(Call::ContainerStatus, &id, |world| {
            let container = world
                .containers
                .get(&id)
                .ok_or_else(|| no_such("container", &id))?;
            Ok(api::ContainerStatusResponse {
                status: Some(container.status.clone()),
                info: verbose(request.verbose, container.pid),
            })
        })
        .await
    }

    async fn list_containers(
        &self,
        request: Request<api::ListContainersRequest>,
    ) -> Answer<api::ListContainersResponse> {
        let selector = request
            .into_inner()
            .filter
            .unwrap_or_default()
            .label_selector;
        self.answer(Call::ListContainers, "", |world| {
            let containers = world
                .containers
                .values()
                .filter(|container| selected(&container.status.labels, &selector))
                .cloned()
                .map(|container| api::Container {
                    id: container.status.id,
                    pod_sandbox_id: container.sandbox,
                    metadata: container.status.metadata,
                    image: container.status.image,
                    image_ref: container.status.image_ref,
                    state: container.status.state,
                    created_at: container.status.created_at,
                    labels: container.status.labels,
                    annotations: container.status.annotations,
                    image_id: container.status.image_id,
                })
                .collect();
            Ok(api::ListContainersResponse { containers })
        })
        .await
    }

    async fn exec_sync(
        &self,
        request: Request<api::ExecSyncRequest>,
    ) -> Answer<api::ExecSyncResponse> {
        let id = request.into_inner().container_id;
        self.answer(Call::ExecSync, &id, |world| Ok(world.exec.clone()))
            .await
    }

    async fn reopen_container_log(
        &self,
        request: Request<api::ReopenContainerLogRequest>,
    ) -> Answer<api::ReopenContainerLogResponse> {
        let id = request.into_inner().container_id;
        self.answer(Call::ReopenContainerLog, &id, |_| {
            Ok(api::ReopenContainerLogResponse {})
        })
        .await
    }

    type GetContainerEventsStream = BoxStream<'static, Result<api::ContainerEventResponse, Status>>;

    async fn get_container_events(
        &self,
        _: Request<api::GetEventsRequest>,
    ) -> Answer<Self::GetContainerEventsStream> {
        self.answer(Call::GetContainerEvents, "", |world| {
            if !world.has_events {
                return Err(Status::unimplemented("unknown method GetContainerEvents"));
            }
            // As deep as the event queues of real runtimes; see `World::emit` for what is beyond.
            let (sender, receiver) = mpsc::channel(1000);
            world.listeners.push(sender);
            Ok(Box::pin(ReceiverStream::new(receiver)) as Self::GetContainerEventsStream)
        })
        .await
    }

    type StreamPodSandboxesStream = NoStream<api::StreamPodSandboxesResponse>;

    async fn stream_pod_sandboxes(
        &self,
        _: Request<api::StreamPodSandboxesRequest>,
    ) -> Answer<Self::StreamPodSandboxesStream> {
        absent()
    }

    type StreamContainersStream = NoStream<api::StreamContainersResponse>;

    async fn stream_containers(
        &self,
        _: Request<api::StreamContainersRequest>,
    ) -> Answer<Self::StreamContainersStream> {
        absent()
    }

    async fn update_container_resources(
        &self,
        _: Request<api::UpdateContainerResourcesRequest>,
    ) -> Answer<api::UpdateContainerResourcesResponse> {
        absent()
    }

    async fn exec(&self, _: Request<api::ExecRequest>) -> Answer<api::ExecResponse> {
        absent()
    }

    async fn attach(&self, _: Request<api::AttachRequest>) -> Answer<api::AttachResponse> {
        absent()
    }

    async fn port_forward(
        &self,
        _: Request<api::PortForwardRequest>,
    ) -> Answer<api::PortForwardResponse> {
        absent()
    }

    async fn container_stats(
        &self,
        _: Request<api::ContainerStatsRequest>,
    ) -> Answer<api::ContainerStatsResponse> {
        absent()
    }

    async fn list_container_stats(
        &self,
        _: Request<api::ListContainerStatsRequest>,
    ) -> Answer<api::ListContainerStatsResponse> {
        absent()
    }

    type StreamContainerStatsStream = NoStream<api::StreamContainerStatsResponse>;

    async fn stream_container_stats(
        &self,
        _: Request<api::StreamContainerStatsRequest>,
    ) -> Answer<Self::StreamContainerStatsStream> {
        absent()
    }

    async fn pod_sandbox_stats(
        &self,
        _: Request<api::PodSandboxStatsRequest>,
    ) -> Answer<api::PodSandboxStatsResponse> {
        absent()
    }

    async fn list_pod_sandbox_stats(
        &self,
        _: Request<api::ListPodSandboxStatsRequest>,
    ) -> Answer<api::ListPodSandboxStatsResponse> {
        absent()
    }

    type StreamPodSandboxStatsStream = NoStream<api::StreamPodSandboxStatsResponse>;

    async fn stream_pod_sandbox_stats(
        &self,
        _: Request<api::StreamPodSandboxStatsRequest>,
    ) -> Answer<Self::StreamPodSandboxStatsStream> {
        absent()
    }

    async fn checkpoint_container(
        &self,
        _: Request<api::CheckpointContainerRequest>,
    ) -> Answer<api::CheckpointContainerResponse> {
        absent()
    }

    async fn checkpoint_pod(
        &self,
        _: Request<api::CheckpointPodRequest>,
    ) -> Answer<api::CheckpointPodResponse> {
        absent()
    }

    async fn restore_pod(
        &self,
        _: Request<api::RestorePodRequest>,
    ) -> Answer<api::RestorePodResponse> {
        absent()
    }

    async fn list_metric_descriptors(
        &self,
        _: Request<api::ListMetricDescriptorsRequest>,
    ) -> Answer<api::ListMetricDescriptorsResponse> {
        absent()
    }

    async fn list_pod_sandbox_metrics(
        &self,
        _: Request<api::ListPodSandboxMetricsRequest>,
    ) -> Answer<api::ListPodSandboxMetricsResponse> {
        absent()
    }

    type StreamPodSandboxMetricsStream = NoStream<api::StreamPodSandboxMetricsResponse>;

    async fn stream_pod_sandbox_metrics(
        &self,
        _: Request<api::StreamPodSandboxMetricsRequest>,
    ) -> Answer<Self::StreamPodSandboxMetricsStream> {
        absent()
    }

    async fn update_pod_sandbox_resources(
        &self,
        _: Request<api::UpdatePodSandboxResourcesRequest>,
    ) -> Answer<api::UpdatePodSandboxResourcesResponse> {
        absent()
    }
}

#[tonic::async_trait]
impl ImageService for Service {
    async fn list_images(
        &self,
        _: Request<api::ListImagesRequest>,
    ) -> Answer<api::ListImagesResponse> {
        self.answer(Call::ListImages, "", |world| {
            let images = world.images.values().cloned().collect();
            Ok(api::ListImagesResponse { images })
        })
        .await
    }

    async fn image_status(
        &self,
        request: Request<api::ImageStatusRequest>,
    ) -> Answer<api::ImageStatusResponse> {
        let image = reference(request.into_inner().image);
        self.answer(Call::ImageStatus, &image, |world| {
            let by_id = || world.images.values().find(|known| known.id == image);
            Ok(api::ImageStatusResponse {
                image: world.images.get(&image).or_else(by_id).cloned(),
                info: HashMap::new(),
            })
        })
        .await
    }

    async fn pull_image(
        &self,
        request: Request<api::PullImageRequest>,
    ) -> Answer<api::PullImageResponse> {
        let image = reference(request.into_inner().image);
        self.answer(Call::PullImage, &image, |world| {
            let found = world.registry.get(&image).cloned();
            let found = found.ok_or_else(|| Status::not_found(format!("{image}: not found")))?;
            let image_ref = found.id.clone();
            world.images.insert(image.clone(), found);
            Ok(api::PullImageResponse { image_ref })
        })
        .await
    }

    async fn remove_image(
        &self,
        request: Request<api::RemoveImageRequest>,
    ) -> Answer<api::RemoveImageResponse> {
        let image = reference(request.into_inner().image);
        self.answer(Call::RemoveImage, &image, |world| {
            world.images.remove(&image);
            Ok(api::RemoveImageResponse {})
        })
        .await
    }

    async fn image_fs_info(
        &self,
        _: Request<api::ImageFsInfoRequest>,
    ) -> Answer<api::ImageFsInfoResponse> {
        self.answer(Call::ImageFsInfo, "", |_| {
            let usage = api::FilesystemUsage {
                fs_id: Some(api::FilesystemIdentifier {
                    mountpoint: "/images".into(),
                }),
                used_bytes: Some(api::UInt64Value { value: 4096 }),
                inodes_used: Some(api::UInt64Value { value: 7 }),
                timestamp: 1,
            };
            Ok(api::ImageFsInfoResponse {
                image_filesystems: vec![usage],
                container_filesystems: Vec::new(),
            })
        })
        .await
    }

    type StreamImagesStream = NoStream<api::StreamImagesResponse>;

    async fn stream_images(
        &self,
        _: Request<api::StreamImagesRequest>,
    ) -> Answer<Self::StreamImagesStream> {
        absent()
    }
}
