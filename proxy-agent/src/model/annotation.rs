//! Annotations of Fairlead's own: `docs/annotations.md` lists them.

use crate::model::{Reason, ip};
use crate::pattern;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use proxy_common::Algorithm;
use std::net::IpAddr;

/// Annotation of a Service: how its backends are picked.
pub const ALGORITHM: &str = "fairlead.io/algorithm";

/// Annotation of a Service or an EndpointSlice: which endpoints get which share.
pub const WEIGHTS: &str = "fairlead.io/weights";

/// The greatest weight: shares of a thousandth can be told.
pub const WEIGHT_MAX: u16 = 1_000;

/// The weight of an endpoint that no entry names.
pub const WEIGHT_DEFAULT: u16 = 1;

/// Entries of one annotation. Each endpoint of the Service is compared with each.
const ENTRIES_MAX: usize = 256;

/// Bytes of an entry that a warning quotes.
const QUOTED_MAX: usize = 80;

/// The value of annotation [`ALGORITHM`].
pub(super) fn algorithm(meta: &ObjectMeta, warn: &mut impl FnMut(Reason, String)) -> Algorithm {
    let Some(text) = value(meta, ALGORITHM) else {
        return Algorithm::default();
    };
    let known = Algorithm::ALL.into_iter().find(|it| it.as_str() == text);
    known.unwrap_or_else(|| {
        let names = Algorithm::ALL.map(Algorithm::as_str).join(", ");
        let message = format!(
            "annotation {ALGORITHM} {:?} is unknown, {} is assumed; write one of: {names}",
            quoted(text),
            Algorithm::default().as_str()
        );
        warn(Reason::UnknownValue, message);
        Algorithm::default()
    })
}

/// The value of annotation [`WEIGHTS`]: `TARGET=WEIGHT`, separated by commas. A
/// target is an endpoint's address, or a pattern for the name of its Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Weights(Box<[(Target, u16)]>);

/// Whom an entry is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Target {
    Address(IpAddr),
    /// `targetRef.name`; `*` stands for any text.
    Name(Box<str>),
}

impl Weights {
    /// The weights of an object; none if any of them cannot be read: a list of
    /// which a part counts would give shares that nobody asked for.
    pub(super) fn of_object(meta: &ObjectMeta, warn: &mut impl FnMut(Reason, String)) -> Self {
        let text = value(meta, WEIGHTS).unwrap_or_default();
        Self::parse(text).unwrap_or_else(|why| {
            let message = format!(
                "annotation {WEIGHTS} counts for nothing, all weights are {WEIGHT_DEFAULT}: {why}; write a list such as db-0=3,web-canary-*=1,192.0.2.7=0"
            );
            warn(Reason::InvalidWeights, message);
            Self::default()
        })
    }

    /// From the annotation's text; blanks around entries are allowed.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let mut entries = Vec::new();
        for entry in text.split(',') {
            if entries.len() == ENTRIES_MAX {
                return Err(format!("it has more than {ENTRIES_MAX} entries"));
            }
            let entry = entry.trim();
            let wrong = |why| format!("entry {:?} {why}", quoted(entry));
            let (target, weight) = parse_entry(entry).map_err(wrong)?;
            if entries.iter().any(|(known, _)| *known == target) {
                return Err(wrong("has the target of an earlier one"));
            }
            entries.push((target, weight));
        }
        Ok(Self(entries.into()))
    }

    /// Whether nothing has a weight by this.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The weight of an endpoint by the first entry that names it. `name` is "" for
    /// one without a Pod.
    pub fn of(&self, address: IpAddr, name: &str) -> Option<u16> {
        let names = |target: &Target| match target {
            Target::Address(it) => *it == address,
            Target::Name(it) => !name.is_empty() && pattern::matches(it, name),
        };
        let found = self.0.iter().find(|(target, _)| names(target));
        found.map(|(_, weight)| *weight)
    }
}

fn parse_entry(entry: &str) -> Result<(Target, u16), &'static str> {
    let Some((target, weight)) = entry.split_once('=') else {
        return Err("is no TARGET=WEIGHT");
    };
    let (target, weight) = (target.trim(), weight.trim());
    if weight.is_empty() || !weight.bytes().all(|it| it.is_ascii_digit()) {
        return Err("has a weight that is no number");
    }
    let weight = weight.parse().ok().filter(|it| *it <= WEIGHT_MAX);
    let weight = weight.ok_or("has a weight above 1000")?;
    Ok((parse_target(target)?, weight))
}

/// What has only digits and dots, or a colon, is meant to be an address.
fn parse_target(text: &str) -> Result<Target, &'static str> {
    let is_address = text.contains(':') || text.bytes().all(|it| b"0123456789.".contains(&it));
    if is_address && !text.is_empty() {
        let address = ip::parse_ip(text).map_err(|_| "has a target that is no IP address")?;
        return Ok(Target::Address(address));
    }
    let is_pattern =
        |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || b"-.*".contains(&it);
    // With many stars a comparison would take long.
    let stars = text.bytes().filter(|it| *it == b'*').count();
    if text.is_empty() || text.len() > 253 || !text.bytes().all(is_pattern) || stars > 2 {
        return Err("has a target that is no name of a Pod, nor a pattern with one or two *");
    }
    Ok(Target::Name(text.into()))
}

pub(super) fn value<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The beginning of a text that somebody wrote.
pub(super) fn quoted(text: &str) -> String {
    text.chars().take(QUOTED_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(text: &str) -> Weights {
        Weights::parse(text).unwrap_or_else(|why| panic!("{text:?}: {why}"))
    }

    #[test]
    fn the_first_entry_that_names_an_endpoint_counts() {
        let list = weights(" db-0=3, web-canary-*=1 ,192.0.2.7=0,fd00::7=9,web-*-b=7,*=1000");
        for (address, name, wanted) in [
            ("10.0.0.1", "db-0", 3),
            ("10.0.0.1", "db-01", 1000),
            ("10.0.0.1", "web-canary-", 1),
            ("10.0.0.1", "web-canary-7d9f-b", 1),
            ("10.0.0.1", "web-stable-b", 7),
            ("192.0.2.7", "db-0", 3),
            ("192.0.2.7", "other", 0),
            ("192.0.2.7", "", 0),
            ("fd00::7", "other", 9),
            ("fd00::8", "other", 1000),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(list.of(address, name), Some(wanted), "{address} {name}");
        }
        assert_eq!(list.of("10.0.0.1".parse().unwrap(), ""), None, "no Pod");
        assert_eq!(weights("").of("10.0.0.1".parse().unwrap(), "a"), None);
        assert!(weights("  ").is_empty() && !list.is_empty());
    }

    #[test]
    fn a_list_with_anything_wrong_is_none() {
        let long = format!("{}=1", "a".repeat(254));
        let many = (0..=ENTRIES_MAX).map(|it| format!("a-{it}=1"));
        let many = many.collect::<Vec<_>>().join(",");
        for text in [
            "web",
            "web=",
            "=1",
            "web=-1",
            "web=+1",
            "web=1.5",
            "web=1001",
            "web=70000",
            "web=1e2",
            "web=1=2",
            "web=1,",
            ",",
            "web=1,,db=2",
            "web=1,web=2",
            "10.0.0.300=1",
            "10.0.0=1",
            "::ffff:10.0.0.1=1",
            "10.0.0.1=1,10.0.0.1=2",
            "fd00::g=1",
            "[fd00::1]=1",
            "10.0.0.1:80=1",
            "fd00::1=1,fd00:0::1=1",
            "Web=1",
            "web_0=1",
            "we b=1",
            "*-*-*=1",
            "ü=1",
            "10.0.0.0/8=1",
            &long,
            &many,
        ] {
            assert!(Weights::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_warning_quotes_a_bounded_part() {
        let why = Weights::parse(&"x".repeat(100_000)).unwrap_err();
        assert!(why.len() < 200, "{}", why.len());
    }
}
