//! Starts a program that the kernel refuses the bpf system call, as a container's seccomp profile
//! does. The test binary plays this part itself.

use std::{
    ffi::OsStr,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
};

/// What to start, with its arguments in JSON.
const PROGRAM: &str = "SKEP_TEST_WITHOUT_BPF";

/// A command that plays the part and becomes `program`.
pub(crate) fn command(program: &Path, args: &[String]) -> Command {
    let mut words = vec![program.display().to_string()];
    words.extend_from_slice(args);
    let mut command = Command::new(std::env::current_exe().expect("the test binary has a path"));
    command
        .args(["--exact", "part::becomes_a_program_without_bpf"])
        .args(["--ignored", "--nocapture"])
        .env(
            PROGRAM,
            serde_json::to_string(&words).expect("words are text"),
        );
    command
}

/// The part: never returns where it is played.
pub(crate) fn become_program() {
    let Some(words) = std::env::var_os(PROGRAM) else {
        return;
    };
    let words: Vec<String> =
        serde_json::from_str(words.to_str().expect("JSON is text")).expect("a list of words");
    let (program, args) = words.split_first().expect("a program");
    refuse_bpf().expect("the kernel takes the filter");
    let error = Command::new(PathBuf::from(program))
        .args(args.iter().map(OsStr::new))
        .env_remove(PROGRAM)
        .exec();
    panic!("{program} cannot be started: {error}");
}

/// From here on the bpf system call fails with EPERM in this thread and all that it becomes.
fn refuse_bpf() -> std::io::Result<()> {
    let step = |code: u32, k: u32, yes: u8, no: u8| libc::sock_filter {
        code: u16::try_from(code).expect("codes have 16 bits"),
        jt: yes,
        jf: no,
        k,
    };
    let number = u32::try_from(libc::SYS_bpf).expect("a small number");
    let refusal = libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs();
    let mut filter = [
        // The call's number is the first field.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number, 0, 1),
        step(libc::BPF_RET | libc::BPF_K, refusal, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).expect("four steps"),
        filter: filter.as_mut_ptr(),
    };
    #[expect(unsafe_code, reason = "no library at hand makes this call")]
    // SAFETY: `program` points to `filter`, and both outlive the call, which copies them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const program,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}
