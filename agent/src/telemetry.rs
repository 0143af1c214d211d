//! Log lines: text or JSON on stderr, as `logging.format` and `--v` say (CFG-29).

use std::{error::Error as StdError, fmt, io::IsTerminal as _};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

/// How log lines look and how many there are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// One JSON object a line.
    pub json: bool,
    /// The kubelet's `--v`: 2 shows what the PLEG tells of each container, 4 shows debugging, 6 everything of Skep's, 8 the libraries' lines too.
    pub verbosity: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("read the log filter {text:?}: expected directives like agent=debug,tonic=info")]
    Filter {
        text: String,
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    #[error("install the log subscriber")]
    Install(#[source] tracing_subscriber::util::TryInitError),
}

/// The level that a verbosity stands for: warnings and what an operator should know always show.
pub fn level(verbosity: u32) -> LevelFilter {
    match verbosity {
        0..=3 => LevelFilter::INFO,
        4..=5 => LevelFilter::DEBUG,
        6.. => LevelFilter::TRACE,
    }
}

/// Target of the lines of what happened to containers: like upstream's, they show from verbosity 2 on.
pub const PLEG_EVENTS: &str = "agent::pleg_events";

/// Installs the subscriber of the whole process. `directives` (the variable `SKEP_LOG`) take the
/// place of what the verbosity says.
pub fn init(settings: Settings, directives: Option<&str>) -> Result<(), Error> {
    use tracing_subscriber::util::SubscriberInitExt as _;

    let filter = filter(settings.verbosity, directives)?;
    let lines = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_env_filter(filter);
    if settings.json {
        lines.json().flatten_event(true).finish().try_init()
    } else {
        lines.finish().try_init()
    }
    .map_err(Error::Install)
}

fn filter(verbosity: u32, directives: Option<&str>) -> Result<EnvFilter, Error> {
    let own = level(verbosity);
    let others = if verbosity >= 8 {
        own
    } else {
        LevelFilter::WARN
    };
    let pleg_events = if verbosity >= 2 {
        own
    } else {
        LevelFilter::WARN
    };
    let usual = format!("{others},agent={own},skep={own},{PLEG_EVENTS}={pleg_events}");
    let text = directives.unwrap_or(&usual);
    EnvFilter::try_new(text).map_err(|source| Error::Filter {
        text: text.to_owned(),
        source,
    })
}

/// An error with all its causes on one line, for `%chain(&error)` in log lines.
pub fn chain<'a>(error: &'a (dyn StdError + 'static)) -> Chain<'a> {
    Chain(error)
}

#[derive(Clone, Copy, Debug)]
pub struct Chain<'a>(&'a (dyn StdError + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = self.0.to_string();
        f.write_str(&last)?;
        let mut next = self.0.source();
        while let Some(error) = next {
            let text = error.to_string();
            // Some libraries put the cause into their own text.
            if !last.ends_with(&text) {
                write!(f, ": {text}")?;
            }
            last = text;
            next = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("read the file")]
    struct Outer(#[source] std::io::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("load: {0}")]
    struct Telling(#[source] std::io::Error);

    #[test]
    fn an_error_is_shown_with_its_causes_and_none_twice() {
        let error = Outer(std::io::Error::other("disk on fire"));
        assert_eq!(chain(&error).to_string(), "read the file: disk on fire");
        let error = Telling(std::io::Error::other("disk on fire"));
        assert_eq!(chain(&error).to_string(), "load: disk on fire");
    }

    #[test]
    fn the_kubelets_verbosity_maps_to_levels() {
        assert_eq!(level(0), LevelFilter::INFO);
        assert_eq!(level(4), LevelFilter::DEBUG);
        assert_eq!(level(10), LevelFilter::TRACE);
    }

    #[rstest::rstest]
    #[case(0, 0)]
    #[case(1, 0)]
    #[case(2, 1)]
    #[case(4, 1)]
    fn what_the_pleg_tells_is_logged_from_upstreams_verbosity_on(
        #[case] verbosity: u32,
        #[case] lines: usize,
    ) {
        #[derive(Clone, Default)]
        struct Log(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);
        impl std::io::Write for Log {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().expect("no panic").write(bytes)
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(filter(verbosity, None).expect("the usual one"))
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(target: PLEG_EVENTS, container = "c", "PLEG event");
        });
        let text = String::from_utf8(log.0.lock().expect("no panic").clone()).expect("text");
        assert_eq!(text.matches("PLEG event").count(), lines, "{text}");
    }

    #[test]
    fn a_bad_filter_is_named() {
        let error = filter(0, Some("agent=loud")).expect_err("not a level");
        assert_eq!(
            error.to_string(),
            "read the log filter \"agent=loud\": expected directives like agent=debug,tonic=info"
        );
        assert!(filter(9, None).is_ok());
    }
}
