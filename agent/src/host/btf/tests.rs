use proptest::prelude::*;
use rstest::rstest;

use super::*;

/// Writes type data as a compiler would.
struct Writer {
    types: Vec<u8>,
    strings: Vec<u8>,
    count: u32,
}

impl Writer {
    fn new() -> Self {
        Self {
            types: Vec::new(),
            strings: vec![0],
            count: 0,
        }
    }

    fn text(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let at = self.strings.len() as u32;
        self.strings.extend_from_slice(text.as_bytes());
        self.strings.push(0);
        at
    }

    fn ty(&mut self, name: &str, kind: u32, members: u32, size_or_type: u32, tail: &[u32]) -> u32 {
        let name = self.text(name);
        for word in [
            name,
            (kind & 0x8000_0000) | ((kind & 0x1f) << 24) | members,
            size_or_type,
        ] {
            self.types.extend_from_slice(&word.to_ne_bytes());
        }
        for word in tail {
            self.types.extend_from_slice(&word.to_ne_bytes());
        }
        self.count += 1;
        self.count
    }

    /// Members as (name, type, offset in bits).
    fn composite(&mut self, kind: u32, name: &str, size: u32, members: &[(&str, u32, u32)]) -> u32 {
        let tail: Vec<u32> = members
            .iter()
            .flat_map(|(name, ty, bits)| [self.text(name), *ty, *bits])
            .collect();
        self.ty(name, kind, members.len() as u32, size, &tail)
    }

    /// Parameters are types; the first is the tracing code's own.
    fn tracepoint(&mut self, name: &str, parameters: &[u32]) {
        let tail: Vec<u32> = parameters.iter().flat_map(|ty| [0, *ty]).collect();
        let function = self.ty("", KIND_FUNC_PROTO, parameters.len() as u32, 0, &tail);
        let pointer = self.ty("", KIND_PTR, 0, function, &[]);
        self.ty(&format!("btf_trace_{name}"), KIND_TYPEDEF, 0, pointer, &[]);
    }

    fn finish(self) -> Vec<u8> {
        let mut data = Vec::new();
        data.extend_from_slice(&MAGIC.to_ne_bytes());
        data.extend_from_slice(&[1, 0]);
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
        for word in [24, 0, types, types, strings] {
            data.extend_from_slice(&word.to_ne_bytes());
        }
        data.extend_from_slice(&self.types);
        data.extend_from_slice(&self.strings);
        data
    }
}

fn crafted(victim_is_a_task: bool) -> Vec<u8> {
    let mut w = Writer::new();
    let int = w.ty("int", KIND_INT, 0, 4, &[32]);
    let void = w.ty("", KIND_PTR, 0, 0, &[]);
    let task = w.composite(
        KIND_STRUCT,
        "task_struct",
        128,
        &[("pid", int, 64), ("comm", int, 256)],
    );
    let pointer = w.ty("", KIND_PTR, 0, task, &[]);
    let inner = w.composite(
        KIND_STRUCT,
        "",
        16,
        &[
            ("", int, 0),
            ("_low_ancestors", int, 0),
            ("ancestors", int, 64),
        ],
    );
    let union = w.composite(KIND_UNION, "", 16, &[("", inner, 0)]);
    let constant = w.ty("", KIND_CONST, 0, union, &[]);
    w.composite(
        KIND_STRUCT,
        "cgroup",
        64,
        &[("level", int, 32), ("", constant, 320)],
    );
    let names = [w.text("cpu_cgrp_id"), 1, w.text("memory_cgrp_id"), 4];
    w.ty("cgroup_subsys_id", KIND_ENUM, 2, 4, &names);
    // Members with bit sizes: the size is the upper byte of the offset.
    w.composite(
        KIND_STRUCT | 0x8000_0000,
        "bits",
        8,
        &[("whole", int, 32), ("three", int, (3 << 24) | 8)],
    );
    w.tracepoint(
        "mark_victim",
        &[void, if victim_is_a_task { pointer } else { int }],
    );
    w.tracepoint("sched_process_exit", &[void, pointer, int, void]);
    w.finish()
}

/// A kernel that has the named tracepoints, all handing over a task, and the memory killer's.
pub(in crate::host) fn with_tracepoints(names: &[&str], victim_is_a_task: bool) -> Vec<u8> {
    let mut w = Writer::new();
    let int = w.ty("int", KIND_INT, 0, 4, &[32]);
    let void = w.ty("", KIND_PTR, 0, 0, &[]);
    let task = w.composite(KIND_STRUCT, "task_struct", 128, &[("tgid", int, 64)]);
    let task = w.ty("", KIND_PTR, 0, task, &[]);
    for name in names {
        w.tracepoint(name, &[void, task]);
    }
    w.tracepoint(
        "mark_victim",
        &[void, if victim_is_a_task { task } else { int }],
    );
    w.finish()
}

#[test]
fn offsets_are_found_also_through_unnamed_members_and_modifiers() {
    let data = crafted(true);
    let btf = Btf::parse(&data).unwrap();
    assert_eq!(btf.offset("task_struct", "comm"), Ok(32));
    assert_eq!(btf.offset("cgroup", "level"), Ok(4));
    assert_eq!(btf.offset("cgroup", "ancestors"), Ok(48));
    assert_eq!(btf.has_field("cgroup", "ancestor_ids"), Ok(false));
    assert_eq!(btf.size("task_struct"), Ok(128));
    assert_eq!(btf.enumerator("memory_cgrp_id"), Ok(4));
    assert_eq!(btf.offset("bits", "whole"), Ok(4));
}

#[rstest]
#[case::newer_kernels(true, Argument::Struct("task_struct".to_owned()))]
#[case::older_kernels(false, Argument::Integer)]
fn the_form_of_the_memory_killers_tracepoint_is_read(
    #[case] is_a_task: bool,
    #[case] expected: Argument,
) {
    let data = crafted(is_a_task);
    let btf = Btf::parse(&data).unwrap();
    assert_eq!(btf.tracepoint("mark_victim"), Ok(vec![expected]));
    assert_eq!(btf.tracepoint("sched_process_exit").unwrap().len(), 3);
}

#[test]
fn an_error_names_the_structure_and_the_field_that_the_kernel_lacks() {
    let data = crafted(true);
    let btf = Btf::parse(&data).unwrap();
    let message = |result: Result<u32, Error>| result.unwrap_err().to_string();
    assert_eq!(
        message(btf.offset("cgroup", "kn")),
        "the kernel's struct cgroup has no field kn"
    );
    assert_eq!(
        message(btf.offset("kernfs_node", "id")),
        "the kernel has no struct kernfs_node"
    );
    assert_eq!(
        message(btf.offset("bits", "three")),
        "the kernel's struct bits has no field three"
    );
    assert_eq!(
        message(btf.enumerator("pids_cgrp_id")),
        "the kernel has no enumerator pids_cgrp_id"
    );
    assert_eq!(
        btf.tracepoint("cgroup_mkdir").unwrap_err().to_string(),
        "the kernel has no tracepoint cgroup_mkdir"
    );
}

#[test]
fn type_data_that_are_cut_short_are_refused() {
    let data = crafted(true);
    for length in 0..data.len() {
        assert!(Btf::parse(&data[..length]).is_err(), "{length} bytes");
    }
    assert_eq!(Btf::parse(b"\x7fELF....").unwrap_err(), Error::Magic);
}

#[test]
fn a_structure_that_holds_itself_does_not_hang_the_reader() {
    let mut w = Writer::new();
    // Type 1 is its own unnamed member; type 2 is a name for itself.
    w.composite(KIND_STRUCT, "loop", 8, &[("", 1, 0)]);
    w.ty("btf_trace_loop", KIND_TYPEDEF, 0, 2, &[]);
    let data = w.finish();
    let btf = Btf::parse(&data).unwrap();
    assert!(btf.offset("loop", "field").is_err());
    assert!(btf.tracepoint("loop").is_err());
}

fn ask_everything(data: &[u8]) {
    let Ok(btf) = Btf::parse(data) else { return };
    for name in ["task_struct", "cgroup", "bits", "", "x"] {
        let _ = btf.size(name);
        for field in ["comm", "ancestors", "three", "", "y"] {
            let _ = btf.offset(name, field);
        }
    }
    let _ = btf.enumerator("memory_cgrp_id");
    let _ = btf.tracepoint("mark_victim");
    let _ = btf.tracepoint("sched_process_exit");
}

proptest! {
    #[test]
    fn damaged_type_data_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let mut data = crafted(true);
        for (place, byte) in changes {
            let at = place.index(data.len());
            data[at] = byte;
        }
        ask_everything(&data);
    }

    #[test]
    fn garbage_behind_a_good_header_never_panics(tail in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut data = crafted(true)[..24].to_vec();
        data.extend_from_slice(&tail);
        ask_everything(&data);
    }
}
