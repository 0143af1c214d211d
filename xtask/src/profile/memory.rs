//! A process's resident memory by what it is for, from its `smaps`.

use anyhow::{Context as _, Result};

use super::read;

/// KiB that are resident.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Memory {
    total: u64,
    proportional: u64,
    private_dirty: u64,
    program: u64,
    libraries: u64,
    heap: u64,
    arenas: u64,
    stacks: u64,
    other: u64,
    rings: u64,
}

/// A part's name, and its KiB.
type Part = (&'static str, fn(&Memory) -> u64);

impl Memory {
    pub(super) const PARTS: [Part; 10] = [
        ("resident", |memory| memory.total),
        ("  proportional", |memory| memory.proportional),
        ("  private and written", |memory| memory.private_dirty),
        ("  of the program's file", |memory| memory.program),
        ("  of libraries", |memory| memory.libraries),
        ("  heap", |memory| memory.heap),
        ("  threads' arenas", |memory| memory.arenas),
        ("  stacks", |memory| memory.stacks),
        ("  other anonymous", |memory| memory.other),
        ("  kernel's rings and maps", |memory| memory.rings),
    ];

    pub(super) fn of(pid: u32) -> Result<Self> {
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).context("the program")?;
        Ok(Self::parse(&smaps(pid)?, &program.display().to_string()))
    }

    fn parse(smaps: &str, program: &str) -> Self {
        let mut memory = Self::default();
        let mut kind: fn(&mut Self) -> &mut u64 = |memory| &mut memory.other;
        let mut last_is_program = false;
        for line in smaps.lines() {
            let mut words = line.split_whitespace();
            let Some(first) = words.next() else { continue };
            if let Some((start, end)) = range(first) {
                let name = line.split_whitespace().nth(5);
                let was_program = std::mem::replace(&mut last_is_program, name == Some(program));
                kind = match name {
                    Some(name) if name == program => |memory| &mut memory.program,
                    Some(name) if name.starts_with('/') => |memory| &mut memory.libraries,
                    Some("[heap]") => |memory| &mut memory.heap,
                    Some("[stack]") => |memory| &mut memory.stacks,
                    Some(name) if name.starts_with("anon_inode:") => |memory| &mut memory.rings,
                    // The program's data that begins as zeros follows its file.
                    None if was_program => |memory| &mut memory.program,
                    // glibc begins an arena at a multiple of 64 MiB; Rust's threads have 2 MiB.
                    None if start.is_multiple_of(64 << 20) => |memory| &mut memory.arenas,
                    None if (2 << 20..=(2 << 20) + 8192).contains(&(end - start)) => {
                        |memory| &mut memory.stacks
                    }
                    _ => |memory| &mut memory.other,
                };
                continue;
            }
            let Some(size) = words.next().and_then(|size| size.parse::<u64>().ok()) else {
                continue;
            };
            match first {
                "Rss:" => {
                    memory.total += size;
                    *kind(&mut memory) += size;
                }
                "Pss:" => memory.proportional += size,
                "Private_Dirty:" => memory.private_dirty += size,
                _ => {}
            }
        }
        memory
    }
}

pub(super) fn smaps(pid: u32) -> Result<String> {
    read(format!("/proc/{pid}/smaps"))
}

/// The addresses with which a mapping's first line begins.
fn range(word: &str) -> Option<(u64, u64)> {
    let (start, end) = word.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    Some((address(start)?, address(end)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mapping_counts_to_what_it_is_for() {
        let smaps = "\
55d0-55e0 r-xp 00000000 fe:00 12 /bin/skep
Rss: 100 kB
Pss: 90 kB
Private_Dirty: 0 kB
5600-5700 rw-p 00000000 00:00 0 [heap]
Rss: 30 kB
Private_Dirty: 30 kB
7f0000000000-7f0000021000 rw-p 00000000 00:00 0
Rss: 7 kB
7f1000001000-7f1000201000 rw-p 00000000 00:00 0
Rss: 5 kB
VmFlags: rd wr mr
7f2000000000-7f2000001000 rw-s 00000000 00:0e 1034 anon_inode:bpf-map
Rss: 4 kB
7f3000000000-7f3000001000 r--p 00000000 fe:00 9 /lib/libc.so.6
Rss: 3 kB
";
        let want = Memory {
            total: 149,
            proportional: 90,
            private_dirty: 30,
            program: 100,
            libraries: 3,
            heap: 30,
            arenas: 7,
            stacks: 5,
            other: 0,
            rings: 4,
        };
        assert_eq!(Memory::parse(smaps, "/bin/skep"), want);
    }
}
