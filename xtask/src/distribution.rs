//! Which distribution this machine runs: what comes from its packages differs by that.

use std::fs;

/// As far as the tasks tell them apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Distribution {
    /// Or one made of its packages.
    Debian,
    /// Or one made of its packages.
    Ubuntu {
        /// Its name in the archive, such as "noble".
        release: String,
    },
    Other,
}

impl Distribution {
    pub(crate) fn of_this_machine() -> Self {
        // The second is the distribution's own, to which the first is a link that may be missing.
        let told = ["/etc/os-release", "/usr/lib/os-release"];
        let text = told.iter().find_map(|file| fs::read_to_string(file).ok());
        text.map_or(Self::Other, |text| Self::told_by(&text))
    }

    /// From the lines of `os-release`.
    fn told_by(text: &str) -> Self {
        let field = |name: &str| {
            let mut lines = text.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
            Some(value.trim().trim_matches(['"', '\'']))
        };
        let is = |name: &str| {
            ["ID", "ID_LIKE"]
                .iter()
                .filter_map(|known| field(known))
                .any(|known| known.split_whitespace().any(|word| word == name))
        };
        // Ubuntu names Debian as what it is like, so it is asked for first.
        if is("ubuntu") {
            // A distribution made of Ubuntu's packages has a release name of its own beside.
            return match field("UBUNTU_CODENAME").or_else(|| field("VERSION_CODENAME")) {
                Some(release) => Self::Ubuntu {
                    release: release.to_owned(),
                },
                None => Self::Other,
            };
        }
        if is("debian") {
            Self::Debian
        } else {
            Self::Other
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ubuntu(release: &str) -> Distribution {
        let release = release.to_owned();
        Distribution::Ubuntu { release }
    }

    #[test]
    fn a_distribution_is_known_by_itself_or_by_what_it_is_made_of() {
        let cases = [
            (
                "PRETTY_NAME=\"Ubuntu 24.04 LTS\"\nVERSION_ID=\"24.04\"\nVERSION_CODENAME=noble\n\
                 ID=ubuntu\nID_LIKE=debian\nUBUNTU_CODENAME=noble\n",
                ubuntu("noble"),
            ),
            (
                "ID=linuxmint\nID_LIKE=\"ubuntu debian\"\nVERSION_CODENAME=virginia\n\
                 UBUNTU_CODENAME=jammy\n",
                ubuntu("jammy"),
            ),
            ("ID=ubuntu\n", Distribution::Other),
            (
                "VERSION_CODENAME=bookworm\nID=debian\n",
                Distribution::Debian,
            ),
            ("ID=raspbian\nID_LIKE=debian\n", Distribution::Debian),
            (
                "ID=fedora\nVERSION_CODENAME=\"\"\nSUPPORT=\"debian\"\n",
                Distribution::Other,
            ),
            ("", Distribution::Other),
        ];
        for (text, expected) in cases {
            assert_eq!(Distribution::told_by(text), expected, "{text}");
        }
    }
}
