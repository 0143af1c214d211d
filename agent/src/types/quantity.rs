//! Kubernetes quantities (`100m`, `1.5Gi`, `12e6`), exactly.
//!
//! Kept in nano-units in an `i128`: every quantity that the API accepts fits, and nothing is
//! rounded before it is asked for. Source: apimachinery's `resource.Quantity`.

use std::{fmt, str::FromStr};

const NANO: i128 = 1_000_000_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantity {
    nanos: i128,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a quantity: expected a number with an optional suffix, like 100m, 64Mi or 1.5"
)]
pub struct NotAQuantity {
    text: String,
}

impl Quantity {
    pub const ZERO: Self = Self { nanos: 0 };

    /// Whole units: bytes, cores, pids.
    pub const fn of(units: i64) -> Self {
        Self {
            nanos: units as i128 * NANO,
        }
    }

    pub const fn of_milli(millis: i64) -> Self {
        Self {
            nanos: millis as i128 * (NANO / 1000),
        }
    }

    /// Whole units, rounded up, as `Quantity.Value()`.
    pub fn value(self) -> i64 {
        saturate(ceil(self.nanos, NANO))
    }

    /// Thousandths, rounded up, as `Quantity.MilliValue()`.
    pub fn milli_value(self) -> i64 {
        saturate(ceil(self.nanos, NANO / 1000))
    }

    /// How often `divisor` fits, rounded up (resourceFieldRef).
    pub fn divided_by(self, divisor: Self) -> i64 {
        if divisor.nanos == 0 {
            self.value()
        } else {
            saturate(ceil(self.nanos, divisor.nanos))
        }
    }

    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// Not a whole number of units (a tenth of a byte, half a pid).
    pub fn is_fractional(self) -> bool {
        self.nanos % NANO != 0
    }
}

fn ceil(nanos: i128, unit: i128) -> i128 {
    nanos.div_euclid(unit) + i128::from(nanos.rem_euclid(unit) != 0)
}

fn saturate(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

impl std::ops::Add for Quantity {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            nanos: self.nanos.saturating_add(other.nanos),
        }
    }
}

impl std::iter::Sum for Quantity {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::ZERO, |sum, next| sum + next)
    }
}

impl FromStr for Quantity {
    type Err = NotAQuantity;

    fn from_str(text: &str) -> Result<Self, NotAQuantity> {
        parse(text)
            .map(|nanos| Self { nanos })
            .ok_or_else(|| NotAQuantity { text: text.into() })
    }
}

impl TryFrom<&k8s_openapi::apimachinery::pkg::api::resource::Quantity> for Quantity {
    type Error = NotAQuantity;

    fn try_from(
        quantity: &k8s_openapi::apimachinery::pkg::api::resource::Quantity,
    ) -> Result<Self, NotAQuantity> {
        quantity.0.parse()
    }
}

fn parse(text: &str) -> Option<i128> {
    let (is_negative, unsigned) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let number_end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let (multiplier, divisor) = scale(suffix)?;

    // whole.fraction * multiplier / divisor, in nano-units; more than 18 digits behind the point
    // cannot matter for a nano-unit of the largest suffix that is allowed a fraction.
    let mut nanos = digits(whole)?.checked_mul(multiplier)?.checked_mul(NANO)?;
    let fraction = &fraction[..fraction.len().min(18)];
    if !fraction.is_empty() {
        let parts = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
        let scaled = digits(fraction)?
            .checked_mul(multiplier)?
            .checked_mul(NANO)?;
        nanos = nanos.checked_add(ceil(scaled, parts))?;
    }
    let nanos = ceil(nanos, divisor);
    Some(if is_negative { -nanos } else { nanos })
}

fn digits(text: &str) -> Option<i128> {
    if text.is_empty() {
        Some(0)
    } else {
        text.parse().ok()
    }
}

/// What a suffix multiplies by and divides by.
fn scale(suffix: &str) -> Option<(i128, i128)> {
    let binary = |power: u32| Some((1024_i128.pow(power), 1));
    let decimal = |power: u32| Some((10_i128.pow(power), 1));
    match suffix {
        "" => Some((1, 1)),
        "n" => Some((1, 1_000_000_000)),
        "u" => Some((1, 1_000_000)),
        "m" => Some((1, 1000)),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        exponent => {
            let power: i32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            let factor = 10_i128
                .checked_pow(power.unsigned_abs())
                .filter(|_| power.abs() <= 18)?;
            Some(if power < 0 { (1, factor) } else { (factor, 1) })
        }
    }
}

/// In whole units where it is whole, else in thousandths: for messages.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_fractional() {
            write!(f, "{}m", self.milli_value())
        } else {
            write!(f, "{}", self.value())
        }
    }
}

/// As Go prints a quantity of thousandths: `500m`, `2`, `1500m`, `12k`.
pub fn milli_text(milli: i64) -> String {
    let mut value = milli;
    let mut suffixes = ["m", "", "k", "M", "G", "T"].into_iter();
    let mut suffix = suffixes.next().unwrap_or_default();
    while value != 0 && value % 1000 == 0 {
        let Some(next) = suffixes.next() else { break };
        (value, suffix) = (value / 1000, next);
    }
    if value == 0 {
        "0".to_owned()
    } else {
        format!("{value}{suffix}")
    }
}

/// As Go prints a binary quantity: `64Mi`, `1000`.
pub fn bytes_text(bytes: i64) -> String {
    let mut value = bytes;
    let mut suffixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].into_iter();
    let mut suffix = suffixes.next().unwrap_or_default();
    while value != 0 && value % 1024 == 0 {
        let Some(next) = suffixes.next() else { break };
        (value, suffix) = (value / 1024, next);
    }
    format!("{value}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("1.5Gi", 1_610_612_736)]
    #[case("12E", 12_000_000_000_000_000_000_i128)]
    #[case("16Ei", 18_446_744_073_709_551_616_i128)]
    #[case("9223372036854775807", 9_223_372_036_854_775_807)]
    #[case("64Mi", 67_108_864)]
    #[case("12e6", 12_000_000)]
    #[case("1E3", 1000)]
    #[case("100m", 1)]
    #[case("0", 0)]
    #[case(".5k", 500)]
    fn reads_whole_units(#[case] text: &str, #[case] units: i128) {
        let quantity: Quantity = text.parse().expect("a quantity");
        assert_eq!(
            i128::from(quantity.value()),
            units.min(i128::from(i64::MAX))
        );
    }

    #[rstest]
    #[case("100m", 100)]
    #[case("0.1", 100)]
    #[case("1500u", 2)]
    #[case("2", 2000)]
    fn reads_thousandths_rounded_up(#[case] text: &str, #[case] millis: i64) {
        assert_eq!(
            text.parse::<Quantity>().expect("a quantity").milli_value(),
            millis
        );
    }

    #[rstest]
    #[case(0, "0")]
    #[case(500, "500m")]
    #[case(2000, "2")]
    #[case(12_000_000, "12k")]
    fn thousandths_read_as_in_go(#[case] milli: i64, #[case] text: &str) {
        assert_eq!(milli_text(milli), text);
    }

    #[rstest]
    #[case(0, "0")]
    #[case(1000, "1000")]
    #[case(64 << 20, "64Mi")]
    #[case(1536, "1536")]
    #[case(3 << 29, "1536Mi")]
    fn bytes_read_as_in_go(#[case] bytes: i64, #[case] text: &str) {
        assert_eq!(bytes_text(bytes), text);
    }

    #[rstest]
    #[case("")]
    #[case("1.2.3")]
    #[case("Mi")]
    #[case("12 Mi")]
    #[case("12mi")]
    #[case("0x10")]
    #[case("1e")]
    #[case("lots")]
    fn refuses_what_is_no_quantity(#[case] text: &str) {
        assert!(text.parse::<Quantity>().is_err());
    }
}
