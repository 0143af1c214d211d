//! What the kernel programs and the agent agree on: the records of the ring buffer, the values of
//! the shared maps, and the built object itself.
//!
//! The programs write these with the machine's byte order and the layout that the assertions below
//! pin; the agent reads them back from bytes, so that a record of an unknown kind or length is
//! refused instead of misread.

#![no_std]

use core::mem::{offset_of, size_of};

/// What a record tells. The numbers are the wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Made = 1,
    Attached = 2,
    Started = 3,
    Exited = 4,
    OomVictim = 5,
    Emptied = 6,
    Removed = 7,
}

impl Kind {
    pub fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Made,
            2 => Self::Attached,
            3 => Self::Started,
            4 => Self::Exited,
            5 => Self::OomVictim,
            6 => Self::Emptied,
            7 => Self::Removed,
            _ => return None,
        })
    }
}

/// [`Head::flags`]: the process is the container's main one.
pub const IS_MAIN: u8 = 1;
/// [`Head::flags`]: the process is the first of a pid namespace right below the agent's. A main
/// process without this flag is a guess (the first that called exec), until user space has told.
pub const IS_INIT: u8 = 2;

/// Longest name of a cgroup's directory that is sent whole, with its final NUL. The longest that
/// runtimes make is some 85 bytes (`cri-containerd-` + 64 + `.scope`).
pub const NAME_BYTES: usize = 96;

/// The start of every record.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Head {
    /// `bpf_ktime_get_ns`: nanoseconds of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// The tracked cgroup: inode number of its directory.
    pub cgroup: u64,
    /// Thread group id in the agent's pid namespace; 0 where there is none to tell.
    pub pid: u32,
    pub kind: u8,
    pub flags: u8,
    pub unused: u16,
}

/// Every record but [`Made`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Event {
    pub head: Head,
    /// As `wait(2)` gives it; meaningful for [`Kind::Exited`].
    pub status: i32,
    pub unused: u32,
    pub comm: [u8; 16],
}

/// [`Kind::Made`], which carries a name.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Made {
    pub head: Head,
    pub parent: u64,
    /// Ends with a NUL.
    pub name: [u8; NAME_BYTES],
}

const _: () = {
    assert!(size_of::<Head>() == 24);
    assert!(offset_of!(Head, at) == 0 && offset_of!(Head, cgroup) == 8);
    assert!(offset_of!(Head, pid) == 16 && offset_of!(Head, kind) == 20);
    assert!(offset_of!(Head, flags) == 21 && offset_of!(Head, unused) == 22);
    assert!(size_of::<Event>() == 48);
    assert!(offset_of!(Event, status) == 24 && offset_of!(Event, comm) == 32);
    assert!(size_of::<Made>() == 128);
    assert!(offset_of!(Made, parent) == 24 && offset_of!(Made, name) == 32);
    assert!(size_of::<Tracked>() == 8);
    assert!(size_of::<PodsRoot>() == 16);
};

/// A record as read back from the ring buffer.
#[derive(Clone, Copy, Debug)]
pub enum Record {
    Event(Event),
    Made(Made),
}

impl Record {
    /// `None` where the length does not go with the kind, or the kind is unknown.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let head = Head {
            at: u64::from_ne_bytes(field(bytes, offset_of!(Head, at))?),
            cgroup: u64::from_ne_bytes(field(bytes, offset_of!(Head, cgroup))?),
            pid: u32::from_ne_bytes(field(bytes, offset_of!(Head, pid))?),
            kind: *bytes.get(offset_of!(Head, kind))?,
            flags: *bytes.get(offset_of!(Head, flags))?,
            unused: 0,
        };
        match (Kind::from_number(head.kind)?, bytes.len()) {
            (Kind::Made, length) if length == size_of::<Made>() => Some(Self::Made(Made {
                head,
                parent: u64::from_ne_bytes(field(bytes, offset_of!(Made, parent))?),
                name: field(bytes, offset_of!(Made, name))?,
            })),
            (Kind::Made, _) => None,
            (_, length) if length == size_of::<Event>() => Some(Self::Event(Event {
                head,
                status: i32::from_ne_bytes(field(bytes, offset_of!(Event, status))?),
                unused: 0,
                comm: field(bytes, offset_of!(Event, comm))?,
            })),
            _ => None,
        }
    }
}

fn field<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk().copied()
}

/// What the programs know of one tracked cgroup: the value of the map `TRACKED`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Tracked {
    /// Thread group id in the agent's pid namespace; 0 while it is unknown.
    pub main_pid: u32,
    /// How many levels of children are tracked too: 2 for the pods' root and the QoS classes, 1
    /// for a pod, 0 for a container.
    pub levels_below: u8,
    /// Of the `TRACKED_` constants.
    pub state: u8,
    pub unused: u16,
}

/// [`Tracked::state`]: made while the programs watched, so that its main process can be learned.
pub const TRACKED_FRESH: u8 = 1;
/// [`Tracked::state`]: a process has come into it.
pub const TRACKED_ATTACHED: u8 = 2;
/// [`Tracked::state`]: the main process is certain, and no other takes its place.
pub const TRACKED_SETTLED: u8 = 4;

impl Tracked {
    /// The value as the map's eight bytes, for the side that writes it through the system call.
    pub fn to_bits(self) -> u64 {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&self.main_pid.to_ne_bytes());
        bytes[4] = self.levels_below;
        bytes[5] = self.state;
        u64::from_ne_bytes(bytes)
    }

    pub fn from_bits(bits: u64) -> Self {
        let [a, b, c, d, levels_below, state, ..] = bits.to_ne_bytes();
        Self {
            main_pid: u32::from_ne_bytes([a, b, c, d]),
            levels_below,
            state,
            unused: 0,
        }
    }
}

/// Where the pods' cgroups begin: the one value of the map `PODS_ROOT`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct PodsRoot {
    /// 0 while there is none.
    pub cgroup: u64,
    /// Its depth in the hierarchy, as the kernel counts (`cgroup.level`).
    pub depth: u64,
}

/// Index in the map `LOSSES`: records that did not fit into the ring buffer.
pub const LOSS_RING: u32 = 0;
/// Index in the map `LOSSES`: cgroups that did not fit into `TRACKED`.
pub const LOSS_MAP: u32 = 1;

#[cfg(not(target_arch = "bpf"))]
mod object {
    /// The loader reads words, so the bytes must be aligned as words are.
    #[repr(C, align(8))]
    struct Aligned<B: ?Sized>(B);

    static ALIGNED: &Aligned<[u8]> = &Aligned(*include_bytes!(env!("SKEP_EBPF_OBJECT_PATH")));

    /// The built programs, an ELF file; see `cargo xtask build-ebpf`.
    pub static OBJECT: &[u8] = &ALIGNED.0;
}

#[cfg(not(target_arch = "bpf"))]
pub use object::OBJECT;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_a_wrong_length_or_kind_is_refused() {
        let mut bytes = [0u8; 128];
        bytes[20] = Kind::Made as u8;
        assert!(matches!(Record::from_bytes(&bytes), Some(Record::Made(_))));
        assert!(Record::from_bytes(&bytes[..48]).is_none());
        bytes[20] = Kind::Exited as u8;
        assert!(Record::from_bytes(&bytes).is_none());
        assert!(matches!(
            Record::from_bytes(&bytes[..48]),
            Some(Record::Event(_))
        ));
        assert!(Record::from_bytes(&bytes[..47]).is_none());
        assert!(Record::from_bytes(&[]).is_none());
        bytes[20] = 99;
        assert!(Record::from_bytes(&bytes[..48]).is_none());
    }

    #[test]
    fn every_kind_comes_back_from_its_number() {
        for kind in [
            Kind::Made,
            Kind::Attached,
            Kind::Started,
            Kind::Exited,
            Kind::OomVictim,
            Kind::Emptied,
            Kind::Removed,
        ] {
            assert_eq!(Kind::from_number(kind as u8), Some(kind));
        }
    }

    #[test]
    fn the_object_is_an_aligned_elf_file() {
        assert_eq!(&OBJECT[..4], b"\x7fELF");
        assert_eq!(OBJECT.as_ptr() as usize % 8, 0);
    }
}
