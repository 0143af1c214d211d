//! A runtime for tests: the real protocol over a real socket, a small world behind it, and faults
//! on demand. It runs on a thread of its own, so that stopping it breaks its connections as the
//! death of a real runtime would, and a test's paused clock does not touch it.

mod service;

use std::{
    collections::{BTreeMap, HashMap},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use proto::cri::v1::{
    self as api, image_service_server::ImageServiceServer,
    runtime_service_server::RuntimeServiceServer,
};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Code, Status, transport::Server};

use super::Call;
use crate::config::RuntimeSettings;

/// What goes wrong with a call.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It takes effect after this time.
    Delay(Duration),
    /// It has no effect.
    Fail(Code, String),
    /// It takes effect, and is never answered.
    LoseAnswer,
}

/// What the runtime has. Tests change it as they like; blank fields are answered as they are.
#[derive(Debug)]
pub struct World {
    pub version: api::VersionResponse,
    pub status: api::StatusResponse,
    pub sandboxes: BTreeMap<String, api::PodSandboxStatus>,
    pub containers: BTreeMap<String, FakeContainer>,
    /// By the reference that was asked for.
    pub images: BTreeMap<String, api::Image>,
    /// What can be pulled, by reference.
    pub registry: BTreeMap<String, api::Image>,
    /// The answer to every command.
    pub exec: api::ExecSyncResponse,
    /// None: the call is not implemented, as in older runtimes.
    pub cgroup_driver: Option<api::CgroupDriver>,
    /// False: the event stream is not implemented.
    pub has_events: bool,
    faults: HashMap<Call, Vec<Fault>>,
    calls: Vec<(Call, String)>,
    listeners: Vec<mpsc::Sender<Result<api::ContainerEventResponse, Status>>>,
    made: u32,
    /// Nanoseconds since 1970; a second later with each thing that is made.
    clock: i64,
}

#[derive(Clone, Debug)]
pub struct FakeContainer {
    pub sandbox: String,
    pub status: api::ContainerStatus,
    pub pid: u32,
}

/// The running fake; dropping it stops it and breaks its connections.
#[derive(Debug)]
pub struct Fake {
    path: PathBuf,
    world: Arc<Mutex<World>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone)]
struct Service(Arc<Mutex<World>>);

fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fake {
    /// Listens on a socket at `path`, replacing what is there.
    pub fn start(path: &Path) -> io::Result<Self> {
        Self::start_with(path, Arc::new(Mutex::new(World::new())))
    }

    fn start_with(path: &Path, world: Arc<Mutex<World>>) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) | Ok(()) => {}
        }
        let listener = std::os::unix::net::UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (stop, stopped) = oneshot::channel();
        let service = Service(Arc::clone(&world));
        let serve = async move {
            let incoming = UnixListenerStream::new(tokio::net::UnixListener::from_std(listener)?);
            let server = Server::builder()
                .add_service(RuntimeServiceServer::new(service.clone()))
                .add_service(ImageServiceServer::new(service))
                .serve_with_incoming(incoming);
            tokio::select! {
                served = server => served.map_err(io::Error::other),
                _ = stopped => Ok(()),
            }
        };
        let thread = std::thread::Builder::new()
            .name("fake-runtime".into())
            .spawn(move || {
                if let Err(error) = runtime.block_on(serve) {
                    tracing::error!(%error, "the fake runtime failed");
                }
                // Breaks the connections that it still serves.
                runtime.shutdown_background();
            })?;
        Ok(Self {
            path: path.to_owned(),
            world,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Stops, and later listens again with the same world: the runtime's restart.
    pub fn stop(mut self) -> Stopped {
        self.halt();
        Stopped {
            path: self.path.clone(),
            world: Arc::clone(&self.world),
        }
    }

    fn halt(&mut self) {
        lock(&self.world).listeners.clear();
        // Either is gone only after a first halt.
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    /// Settings of a client of this fake.
    pub fn settings(&self, request_timeout: Duration) -> RuntimeSettings {
        RuntimeSettings {
            endpoint: format!("unix://{}", self.path.display()),
            image_endpoint: None,
            request_timeout,
        }
    }

    /// The next call of this kind goes wrong; several add up, first come first served.
    pub fn fault(&self, call: Call, fault: Fault) {
        lock(&self.world)
            .faults
            .entry(call)
            .or_default()
            .push(fault);
    }

    /// The calls so far, with the id or reference that they were about.
    pub fn calls(&self) -> Vec<(Call, String)> {
        lock(&self.world).calls.clone()
    }

    pub fn count(&self, call: Call) -> usize {
        self.calls()
            .iter()
            .filter(|(made, _)| *made == call)
            .count()
    }

    /// Looks at the world or changes it, between calls.
    pub fn with<T>(&self, change: impl FnOnce(&mut World) -> T) -> T {
        change(&mut lock(&self.world))
    }

    /// Ends the event streams that are open.
    pub fn break_streams(&self) {
        lock(&self.world).listeners.clear();
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.halt();
    }
}

/// A fake that was stopped.
#[derive(Debug)]
pub struct Stopped {
    path: PathBuf,
    world: Arc<Mutex<World>>,
}

impl Stopped {
    pub fn start(self) -> io::Result<Fake> {
        Fake::start_with(&self.path, self.world)
    }
}

impl World {
    fn new() -> Self {
        let condition = |kind: &str| api::RuntimeCondition {
            r#type: kind.into(),
            status: true,
            ..Default::default()
        };
        Self {
            version: api::VersionResponse {
                version: "0.1.0".into(),
                runtime_name: "fake".into(),
                runtime_version: "1".into(),
                runtime_api_version: "v1".into(),
            },
            status: api::StatusResponse {
                status: Some(api::RuntimeStatus {
                    conditions: vec![condition("RuntimeReady"), condition("NetworkReady")],
                }),
                ..Default::default()
            },
            sandboxes: BTreeMap::new(),
            containers: BTreeMap::new(),
            images: BTreeMap::new(),
            registry: BTreeMap::new(),
            exec: api::ExecSyncResponse::default(),
            cgroup_driver: None,
            has_events: true,
            faults: HashMap::new(),
            calls: Vec::new(),
            listeners: Vec::new(),
            made: 0,
            clock: 1_800_000_000_000_000_000,
        }
    }

    fn tick(&mut self) -> i64 {
        self.clock += 1_000_000_000;
        self.clock
    }

    fn new_id(&mut self, kind: &str) -> String {
        self.made += 1;
        format!("{kind}{:06}", self.made)
    }

    /// An image in the registry, so that it can be pulled.
    pub fn offer(&mut self, reference: &str, size: u64) {
        let image = api::Image {
            id: format!("sha256:{reference}"),
            repo_tags: vec![reference.to_owned()],
            size,
            ..Default::default()
        };
        self.registry.insert(reference.to_owned(), image);
    }

    /// Ends a container's main process and tells the listeners.
    ///
    /// # Panics
    ///
    /// If there is no such container.
    pub fn exit(&mut self, id: &str, code: i32, reason: &str) {
        let at = self.tick();
        let container = self
            .containers
            .get_mut(id)
            .expect("the test made this container");
        container.pid = 0;
        let status = &mut container.status;
        status.set_state(api::ContainerState::ContainerExited);
        status.finished_at = at;
        status.exit_code = code;
        status.reason = reason.to_owned();
        self.emit(id, api::ContainerEventType::ContainerStoppedEvent);
    }

    /// Sends an event about a container to the listeners.
    pub fn emit(&mut self, id: &str, kind: api::ContainerEventType) {
        let sandbox = self
            .containers
            .get(id)
            .map_or(id, |container| &container.sandbox);
        let event = api::ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: kind.into(),
            created_at: self.clock,
            pod_sandbox_status: self.sandboxes.get(sandbox).cloned(),
            containers_statuses: Vec::new(),
        };
        // A listener that is gone, or a thousand events behind, is dropped.
        self.listeners
            .retain(|listener| listener.try_send(Ok(event.clone())).is_ok());
    }
}
