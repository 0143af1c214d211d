//! What the programs must be told of this kernel: offsets of fields, and which form of a
//! tracepoint it has. Pure: type data in, values of the programs' globals out.

use super::Error;
use crate::host::{
    btf::{self, Argument, Btf},
    hierarchy::{CgroupVersion, Hierarchy},
};

/// Pointers in the kernel's arrays. The programs know no other size.
const POINTER: u32 = 8;

/// The globals of the programs, by name.
pub(super) fn globals(
    types: &Btf<'_>,
    hierarchy: &Hierarchy,
    pid_namespace: u32,
) -> Result<Vec<(&'static str, u32)>, btf::Error> {
    let is_v2 = hierarchy.version == CgroupVersion::V2;
    // The v2 hierarchy has a pointer of its own; a v1 hierarchy is reached through a controller.
    let subsystem = match hierarchy.version {
        CgroupVersion::V1 => types.enumerator("memory_cgrp_id")?,
        CgroupVersion::V2 => 0,
    };
    // From Linux 6.1 the ancestors themselves, before that their ids.
    let ancestors_are_ids = !types.has_field("cgroup", "ancestors")?;
    let ancestors = if ancestors_are_ids {
        "ancestor_ids"
    } else {
        "ancestors"
    };
    // From Linux 6.16: task, and whether it was the last of its group.
    let tells_group_dead = types.tracepoint("sched_process_exit")?.len() > 1;
    let at = |name: &'static str, field: &'static str| types.offset(name, field);
    Ok(vec![
        ("HIERARCHY_ID", hierarchy.id),
        ("CGROUP_V2", u32::from(is_v2)),
        ("AGENT_PID_NS", pid_namespace),
        ("EXIT_TELLS_GROUP_DEAD", u32::from(tells_group_dead)),
        ("ANCESTORS_ARE_IDS", u32::from(ancestors_are_ids)),
        ("TASK_TGID", at("task_struct", "tgid")?),
        ("TASK_COMM", at("task_struct", "comm")?),
        ("TASK_EXIT_CODE", at("task_struct", "exit_code")?),
        ("TASK_SIGNAL", at("task_struct", "signal")?),
        ("TASK_CGROUPS", at("task_struct", "cgroups")?),
        ("TASK_THREAD_PID", at("task_struct", "thread_pid")?),
        ("TASK_GROUP_LEADER", at("task_struct", "group_leader")?),
        ("SIGNAL_LIVE", at("signal_struct", "live")?),
        ("SIGNAL_FLAGS", at("signal_struct", "flags")?),
        (
            "SIGNAL_GROUP_EXIT_CODE",
            at("signal_struct", "group_exit_code")?,
        ),
        ("PID_LEVEL", at("pid", "level")?),
        ("PID_NUMBERS", at("pid", "numbers")?),
        ("UPID_SIZE", types.size("upid")?),
        ("UPID_NR", at("upid", "nr")?),
        ("UPID_NS", at("upid", "ns")?),
        (
            "PID_NS_INUM",
            at("pid_namespace", "ns")? + at("ns_common", "inum")?,
        ),
        ("CSS_SET_DFL_CGRP", at("css_set", "dfl_cgrp")?),
        (
            "CSS_SET_SUBSYS",
            at("css_set", "subsys")? + POINTER * subsystem,
        ),
        ("CSS_CGROUP", at("cgroup_subsys_state", "cgroup")?),
        ("CSS_PARENT", at("cgroup_subsys_state", "parent")?),
        ("CGROUP_SELF", at("cgroup", "self")?),
        ("CGROUP_KN", at("cgroup", "kn")?),
        ("CGROUP_ROOT", at("cgroup", "root")?),
        ("CGROUP_LEVEL", at("cgroup", "level")?),
        ("CGROUP_ANCESTORS", at("cgroup", ancestors)?),
        ("ROOT_HIERARCHY_ID", at("cgroup_root", "hierarchy_id")?),
        ("KN_ID", at("kernfs_node", "id")?),
        ("KN_NAME", at("kernfs_node", "name")?),
    ])
}

/// The programs for this kernel, each with its tracepoint. That of removal comes first and that of
/// making last, so that nothing enters the map while its removal could be missed.
pub(super) fn programs(types: &Btf<'_>) -> Result<Vec<(&'static str, &'static str)>, Error> {
    let victim = types.tracepoint("mark_victim").map_err(Error::Missing)?;
    let victim = match victim.first() {
        Some(Argument::Struct(name)) if name == "task_struct" => "on_victim_task",
        Some(Argument::Integer) => "on_victim_pid",
        Some(Argument::Struct(_) | Argument::Other) | None => return Err(Error::VictimForm),
    };
    let programs = vec![
        ("on_rmdir", "cgroup_rmdir"),
        ("on_populated", "cgroup_notify_populated"),
        ("on_exit", "sched_process_exit"),
        ("on_exec", "sched_process_exec"),
        (victim, "mark_victim"),
        ("on_attach", "cgroup_attach_task"),
        ("on_mkdir", "cgroup_mkdir"),
    ];
    for (_, tracepoint) in &programs {
        types.tracepoint(tracepoint).map_err(Error::Missing)?;
    }
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::host::btf::tests::with_tracepoints;

    const TRACEPOINTS: [&str; 6] = [
        "sched_process_exit",
        "sched_process_exec",
        "cgroup_mkdir",
        "cgroup_rmdir",
        "cgroup_attach_task",
        "cgroup_notify_populated",
    ];

    #[rstest]
    #[case::newer_kernels(true, "on_victim_task")]
    #[case::older_kernels(false, "on_victim_pid")]
    fn the_memory_killers_program_is_chosen_by_what_its_tracepoint_hands_over(
        #[case] is_a_task: bool,
        #[case] expected: &str,
    ) {
        let data = with_tracepoints(&TRACEPOINTS, is_a_task);
        let chosen = programs(&Btf::parse(&data).unwrap()).unwrap();
        assert_eq!(chosen.len(), 7);
        assert!(chosen.contains(&(expected, "mark_victim")));
    }

    #[test]
    fn a_kernel_without_a_tracepoint_or_a_field_is_told_which() {
        let data = with_tracepoints(&TRACEPOINTS[..5], true);
        let types = Btf::parse(&data).unwrap();
        assert_eq!(
            programs(&types).unwrap_err().to_string(),
            "the kernel lacks what the programs need: the kernel has no tracepoint \
             cgroup_notify_populated"
        );
        let hierarchy = Hierarchy {
            version: CgroupVersion::V2,
            id: 0,
            mount: "/sys/fs/cgroup".into(),
            mount_depth: 0,
        };
        let error = globals(&types, &hierarchy, 1).unwrap_err();
        assert_eq!(error.to_string(), "the kernel has no struct cgroup");
    }

    #[test]
    fn the_running_kernel_has_everything_on_both_versions_of_cgroups() {
        let data = std::fs::read("/sys/kernel/btf/vmlinux").unwrap();
        let types = Btf::parse(&data).unwrap();
        for version in [CgroupVersion::V1, CgroupVersion::V2] {
            let hierarchy = Hierarchy {
                version,
                id: 4,
                mount: "/sys/fs/cgroup".into(),
                mount_depth: 0,
            };
            let globals = globals(&types, &hierarchy, 1).unwrap();
            let value = |name| globals.iter().find(|(one, _)| *one == name).unwrap().1;
            assert_eq!(value("HIERARCHY_ID"), 4);
            assert!(value("TASK_COMM") > 0);
            assert_eq!(value("CGROUP_V2") != 0, version == CgroupVersion::V2);
        }
    }
}
