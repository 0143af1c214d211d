//! The composition root: opens the adapters, builds every part, connects them, and only then starts
//! them. Nothing else in the crate starts a root task.
//!
//! Stopping the agent never stops a pod: intake ends first, each worker finishes the step in hand,
//! and everything is rebuilt from the runtime and the disk at the next start.

mod down;
mod kernel;
mod links;
mod tasks;
mod up;

use std::{path::Path, process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context as _;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use self::tasks::Tasks;
pub use self::{
    down::down_without_agent,
    up::{UpOptions, up},
};
use crate::{
    config::{Config, validate},
    cri, gc,
    health::{Board, Grade, Part},
    host::{
        cgroup::{self, Cgroups},
        hierarchy::{CgroupVersion, Hierarchy},
        proc,
    },
    image::Images,
    logs, metrics, oom, pleg, server, source,
    status::Statuses,
    supervise, sync, timeline,
    types::{id::PodUid, quantity::Quantity},
    volume::{self, Volumes},
    worker::{Context, context, facts},
};

/// Where an agent's start differs between `run` and `up`.
#[derive(Debug)]
pub struct Start {
    pub config: Config,
    /// The endpoint may hold pods of others: refuse to start over them.
    pub refuses_strangers: bool,
    /// A containerd of the agent's own, already started.
    pub supervised: Option<(supervise::Supervised, supervise::Task, supervise::Settings)>,
}

/// Room on disk for the timeline, over all its segments.
const TIMELINE_BYTES: u64 = 16 << 20;
/// Memory news waiting for their counters to be read: a storm of kills on one node.
const MEMORY_NEWS: usize = 1024;
/// One report per worker and turn; a worker waits while the loop is busy.
const REPORTS: usize = 256;
/// Between two attempts to reach a runtime that is not there yet.
const RUNTIME_RETRY: Duration = Duration::from_secs(1);

/// `skep run`: the daemon with the kubelet's flags and file.
pub async fn run(config: Config) -> anyhow::Result<ExitCode> {
    start(Start {
        config,
        refuses_strangers: false,
        supervised: None,
    })
    .await
}

/// Runs the agent until it is told to stop, or until one of its parts ends unexpectedly.
pub async fn start(start: Start) -> anyhow::Result<ExitCode> {
    let Start {
        config,
        refuses_strangers,
        supervised,
    } = start;
    // Held until the agent ends.
    let _lock_file = match &config.process.lock_file {
        Some(path) => Some(server::wait_for_lock(path).await?),
        None => None,
    };
    make_dirs(&config)?;
    let lock = server::RootLock::take(&config.dirs.root)?;
    let prometheus = metrics::install()?;
    let hierarchy = Hierarchy::detect().context("find the cgroup hierarchy")?;
    validate::refuse_machine(
        &config,
        validate::Machine {
            is_cgroup_v1: hierarchy.version == CgroupVersion::V1,
            is_swap_on: proc::is_swap_on()?,
        },
    )?;
    metrics::CGROUP_VERSION.set(
        if hierarchy.version == CgroupVersion::V1 {
            1.0
        } else {
            2.0
        },
        &[],
    );
    prepare_process(&config);

    let stop = CancellationToken::new();
    let mut tasks = Tasks::new(stop.clone());
    let board = Board::default();
    let statuses = Statuses::default();
    let (recorder, timeline_task) =
        timeline::open(config.dirs.root.join("skep/timeline"), TIMELINE_BYTES)?;
    tasks.spawn("timeline", timeline_task.run(stop.clone()));
    let client = cri::Client::new(&config.runtime)?;
    let kept = config.dirs.root.join("skep/manifests");
    let (sources, source_task, updates) = source::new(
        &config.sources,
        &config.node.name,
        Some(kept),
        board.clone(),
    );

    // The servers come before the runtime: who waits for what can then be asked.
    let (orders, orders_rx) = mpsc::channel(4);
    let shared = links::Shared::new(&config, orders, sources.watch_refusals());
    let links = server::Links {
        statuses: statuses.clone(),
        board: board.clone(),
        timeline: recorder.clone(),
        cri: client.clone(),
        metrics: prometheus,
        pod_logs: config.dirs.pod_logs.clone(),
        describe: shared.describe(),
        relist: shared.relist(),
        down: shared.down(),
    };
    let bound = server::bind(
        &server::Settings {
            healthz: config.servers.healthz,
            read_only: config.servers.read_only,
        },
        &lock,
        links,
    )
    .await?;
    let serving = bound.run(stop.clone());
    tasks.spawn_fallible("server", async move { Ok(serving.await?) });

    let is_supervised = supervised.is_some();
    let mut supervise_settings = None;
    if let Some((supervised, task, settings)) = supervised {
        tracing::info!(
            version = ?supervised.version, is_adopted = supervised.is_adopted,
            "The agent's own containerd runs",
        );
        supervise_settings = Some(settings);
        shared.set_containerd(supervised.state.clone());
        tasks.spawn("containerd", task.run(stop.clone()));
    }

    let signals = tasks::signals(stop.clone());
    tokio::pin!(signals);
    let version = tokio::select! {
        version = wait_for_runtime(&client, &board) => version,
        ended = tasks.first_end() => return ended.map(|()| ExitCode::SUCCESS),
        () = &mut signals => return tasks.finish(ExitCode::SUCCESS).await,
    };
    shared.set_runtime(format!(
        "{} {}",
        version.runtime_name, version.runtime_version
    ));
    tracing::info!(
        name = version.runtime_name,
        version = version.runtime_version,
        "Runtime"
    );
    if refuses_strangers {
        refuse_strangers(&client, &config.dirs.root).await?;
    }
    let mut config = config;
    if let Some(driver) = cgroup_driver(&client).await? {
        config.cgroups.driver = driver;
    }
    let machine = machine()?;
    let cgroups = Cgroups::new(&config.cgroups, hierarchy.version, machine)?;
    cgroups.ensure_root(&[]).await?;
    down::keep_cgroup_root(&config.dirs.root, &config.cgroups.root)?;

    let (memory_news, memory_news_rx) = mpsc::channel(MEMORY_NEWS);
    let pleg_deps = pleg::Deps {
        client: client.clone(),
        recorder: recorder.clone(),
        board: board.clone(),
        open_kernel: kernel::opener(
            hierarchy.clone(),
            config.pleg.ring_bytes,
            cgroups.pods_root(),
        ),
        memory_news,
    };
    let (pleg, pleg_task, events) = pleg::Task::new(config.pleg.clone(), pleg_deps);
    let watcher = oom::Task::new(
        &cgroups,
        pleg.cache().clone(),
        recorder.clone(),
        memory_news_rx,
    );
    tasks.spawn("oom", watcher.run(stop.clone()));
    tasks.spawn_ahead("pleg", pleg_task.run(stop.clone()))?;
    shared.set_pleg(pleg.clone());

    let (views, runtime_task) = sync::runtime::new(client.clone(), board.clone(), pleg.clone());
    shared.set_runtime_fault(views.runtime.clone());
    tasks.spawn_fallible("runtime", runtime_task.run(stop.clone()));
    tasks.spawn("sources", source_task.run(stop.clone()));

    let (reports, reports_rx) = mpsc::channel(REPORTS);
    let facts = node_facts(&config, &hierarchy, machine);
    let context = Arc::new(Context {
        images: Images::new(&config.images, client.clone()),
        volumes: Volumes::new(volume::Settings {
            root: config.dirs.root.clone(),
            allocatable_memory: facts.allocatable.memory,
            is_selinux_enabled: facts.is_selinux_enabled,
        }),
        facts,
        runtime: client.clone(),
        runtime_name: version.runtime_name.clone(),
        cgroups,
        pleg: pleg.clone(),
        statuses: statuses.clone(),
        recorder: recorder.clone(),
        network: views.network.clone(),
        runtime_state: views.runtime.clone(),
        starts: Arc::new(Semaphore::new(config.sync.max_starts)),
        reports,
        settings: context::Settings {
            pod_logs: config.dirs.pod_logs.clone(),
            container_logs: config.dirs.container_logs.clone(),
            sync_period: config.sync.period,
            max_restart_backoff: config.sync.max_restart_backoff,
            max_starts: config.sync.max_starts,
        },
    });
    context.check_resolver();
    let rotation = logs::rotate::new(
        config.logs.clone(),
        running_logs(pleg.cache().clone()),
        logs::rotate::reopen_through(client.clone()),
    );
    tasks.spawn("log rotation", rotation.run(stop.clone()));
    let sync_task = sync::Task::new(
        sync::Deps {
            context,
            updates,
            sources: sources.configured().to_vec(),
            events,
            reports: reports_rx,
            orders: orders_rx,
            runtime: views.runtime,
            board: board.clone(),
            max_pods: config.node.max_pods,
            collector: gc::Collector::new(client.clone(), config.dirs.clone(), config.gc.clone()),
        },
        stop.clone(),
    );
    tasks.spawn_ahead("sync loop", sync_task.run(stop.clone()))?;
    tracing::info!(
        node = config.node.name, root = %config.dirs.root.display(), is_supervised,
        "The agent runs",
    );
    tasks::tell_ready();

    tokio::select! {
        ended = tasks.first_end() => {
            ended?;
            tasks.finish(ExitCode::SUCCESS).await
        }
        () = &mut signals => tasks.finish(ExitCode::SUCCESS).await,
        () = shared.is_down() => {
            let code = tasks.finish(ExitCode::SUCCESS).await?;
            if let Some(settings) = &supervise_settings {
                supervise::stop(settings).await?;
            }
            Ok(code)
        }
    }
}

fn make_dirs(config: &Config) -> anyhow::Result<()> {
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
    let make = |path: &Path, mode: u32| {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(mode)
            .create(path)
            .and_then(|()| {
                // The umask must not take away what others need.
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
            })
            .with_context(|| format!("make the folder {}", path.display()))
    };
    // CFG-02.
    make(&config.dirs.root, 0o750)?;
    make(&config.dirs.root.join("pods"), 0o750)?;
    make(&config.dirs.root.join("skep"), 0o700)?;
    make(&config.dirs.pod_logs, 0o750)?;
    make(&config.dirs.container_logs, 0o755)
}

fn machine() -> anyhow::Result<cgroup::Machine> {
    Ok(cgroup::Machine {
        cpu: Quantity::of(i64::try_from(proc::cpus()?)?),
        memory: Quantity::of(i64::try_from(proc::memory_total()?)?),
        pids: Quantity::of(proc::pid_max()?),
    })
}

/// The agent's own process: what fails is logged, as upstream does (CFG-21).
fn prepare_process(config: &Config) {
    if let Err(error) = proc::set_oom_score_adj(config.process.oom_score_adj) {
        tracing::info!(%error, "The agent's own oom_score_adj stays as it is");
    }
    if let Err(error) = proc::set_max_open_files(config.process.max_open_files) {
        tracing::info!(%error, "The limit of open files stays as it is");
    }
}

/// Waits for a runtime that is not there yet, and says so: a node boots in any order.
async fn wait_for_runtime(client: &cri::Client, board: &Board) -> cri::Version {
    let mut is_told = false;
    loop {
        match client.version().await {
            Ok(version) => return version,
            Err(error) => {
                let why = format!("waiting for the runtime at {}: {error}", client.endpoint());
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!(endpoint = client.endpoint(), %error, "Waiting for the runtime");
                }
                board.set(Part::Runtime, Grade::Bad, why);
            }
        }
        tokio::time::sleep(RUNTIME_RETRY).await;
    }
}

/// On an endpoint that is shared, pods that this agent did not start are somebody's: it would stop
/// them as unknown ones.
async fn refuse_strangers(client: &cri::Client, root: &Path) -> anyhow::Result<()> {
    let strangers: Vec<String> = client
        .list_pods()
        .await?
        .into_iter()
        .filter(|pod| !is_own(root, &pod.uid))
        .map(|pod| pod.key.to_string())
        .collect();
    anyhow::ensure!(
        strangers.is_empty(),
        "{} holds pods that Skep did not start ({}): with --adopt they become Skep's, and those \
         that no manifest wants are stopped",
        client.endpoint(),
        strangers.join(", "),
    );
    Ok(())
}

/// A pod that was ever set up here has a folder, until it is cleaned up.
fn is_own(root: &Path, uid: &PodUid) -> bool {
    !uid.as_str().is_empty() && root.join("pods").join(uid.as_str()).is_dir()
}

/// What the runtime says of the cgroup driver goes before the configuration (CFG-24).
async fn cgroup_driver(
    client: &cri::Client,
) -> anyhow::Result<Option<crate::config::CgroupDriver>> {
    let driver = client.runtime_config().await?;
    if driver.is_none() {
        metrics::CRI_LOSING_SUPPORT.set(1.0, &[("version", "1.38.0")]);
    }
    Ok(driver)
}

fn node_facts(
    config: &Config,
    hierarchy: &Hierarchy,
    machine: cgroup::Machine,
) -> facts::NodeFacts {
    let sys = Path::new("/sys");
    let ips = if config.node.ips.is_empty() {
        proc::host_ips().unwrap_or_else(|error| {
            tracing::warn!(%error, "The node has no address: pods see none as their host's");
            Vec::new()
        })
    } else {
        config.node.ips.clone()
    };
    let reserved = |of: fn(&crate::config::Reserved) -> Quantity, capacity: Quantity| {
        let less = of(&config.cgroups.system_reserved) + of(&config.cgroups.kube_reserved);
        Quantity::of_milli((capacity.milli_value() - less.milli_value()).max(0))
    };
    facts::NodeFacts {
        node_name: config.node.name.clone(),
        node_ips: ips,
        memory_capacity: machine.memory.value(),
        allocatable: facts::Allocatable {
            cpu: reserved(|reserved| reserved.cpu, machine.cpu),
            memory: Quantity::of(reserved(|reserved| reserved.memory, machine.memory).value()),
            ephemeral_storage: None,
        },
        cgroup_version: hierarchy.version,
        cgroups: config.cgroups.clone(),
        dns: config.dns.clone(),
        root_dir: config.dirs.root.clone(),
        seccomp_default: config.node.seccomp_default,
        swap_usable: proc::is_swap_controller_usable(&hierarchy.mount, hierarchy.version),
        hugepage_sizes: facts::hugepage_sizes(sys),
        thermal_throttle_paths: facts::thermal_throttle_paths(sys),
        is_selinux_enabled: facts::is_selinux_enabled(sys),
    }
}

fn running_logs(cache: pleg::Cache) -> logs::rotate::Running {
    Arc::new(move || {
        cache
            .all()
            .iter()
            .flat_map(|pod| pod.containers.clone())
            .filter(|container| container.state.is_running())
            .filter_map(|container| {
                let path = container.log_path?.into();
                Some(logs::rotate::RunningLog {
                    container_id: container.id,
                    path,
                })
            })
            .collect()
    })
}
