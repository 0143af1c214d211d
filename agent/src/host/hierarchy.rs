//! Which cgroup hierarchy the agent follows, and who is who in it.

/// The cgroup interface that limits memory on this machine. A hybrid machine (v1 controllers
/// beside a v2 tree without them) counts as v1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    V1,
    V2,
}
