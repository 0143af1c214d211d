//! The smallest program there is, for `bpf-overhead` to spawn: what it takes is fork, exec and exit
//! in the kernel, and nothing of its own.

/// Where it is loaded.
const BASE: u64 = 0x40_0000;
const HEADERS: u64 = 64 + 56;

/// The ELF file of a program that ends with 0 at once. None for an architecture that has none here.
pub(super) fn program(arch: &str) -> Option<Vec<u8>> {
    let (machine, code): (u16, &[u8]) = match arch {
        // xor edi, edi; mov eax, 60 (exit); syscall
        "x86_64" => (62, &[0x31, 0xff, 0xb8, 60, 0, 0, 0, 0x0f, 0x05]),
        // mov x0, #0; mov x8, #93 (exit); svc #0
        "aarch64" => (
            183,
            &[0, 0, 0x80, 0xd2, 0xa8, 0x0b, 0x80, 0xd2, 1, 0, 0, 0xd4],
        ),
        _other => return None,
    };
    let size = HEADERS + code.len() as u64;
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    // ET_EXEC, the machine, version 1.
    file.extend([2, 0]);
    file.extend(machine.to_le_bytes());
    file.extend(1_u32.to_le_bytes());
    // Entry, program headers, no sections, no flags.
    for value in [BASE + HEADERS, 64, 0] {
        file.extend(value.to_le_bytes());
    }
    file.extend(0_u32.to_le_bytes());
    // Sizes and numbers of headers: this one, one of a program's, none of a section's.
    for value in [64_u16, 56, 1, 0, 0, 0] {
        file.extend(value.to_le_bytes());
    }
    // PT_LOAD of all of it, to read and execute.
    for value in [1_u32, 5] {
        file.extend(value.to_le_bytes());
    }
    for value in [0, BASE, BASE, size, size, 0x1000] {
        file.extend(value.to_le_bytes());
    }
    file.extend(code);
    Some(file)
}
