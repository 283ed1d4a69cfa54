//! Instances of static memory allocation as CSV: `id,lower,upper,size`, one buffer a row, live over [lower, upper).

use breakable_cuda_graph::memory::planner::BufferSpec;
use std::collections::HashMap;
use std::path::Path;

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// It can't be read, or is not CSV.
    #[error("{file}: {reason}")]
    Unreadable { file: String, reason: csv::Error },
    /// A column is missing.
    #[error("{file} has no column {column:?}: it is to have id, lower, upper and size")]
    NoColumn { file: String, column: &'static str },
    /// A field is no number that makes sense there.
    #[error("{file}, line {line}: the {column} is {got:?}, which is no whole number from 0 on")]
    NotANumber { file: String, line: u64, column: &'static str, got: String },
    /// A buffer of no bytes.
    #[error("{file}, line {line}: buffer {id} has no bytes")]
    NoBytes { file: String, line: u64, id: String },
    /// A buffer that ends before it begins, or at once.
    #[error("{file}, line {line}: buffer {id} lives from {lower} to before {upper}, which is never")]
    Lifetime { file: String, line: u64, id: String, lower: u64, upper: u64 },
    /// Two buffers of one name.
    #[error("{file}, line {line}: buffer {id} is on line {first} already")]
    Twice { file: String, line: u64, id: String, first: u64 },
}

/// Buffers with their names.
#[derive(Debug, Default)]
pub struct Instance {
    pub ids: Vec<String>,
    pub specs: Vec<BufferSpec>,
}

/// Reads a file.
pub fn read(path: &Path) -> Result<Instance, InstanceError> {
    let file = path.display().to_string();
    let unreadable = |reason| InstanceError::Unreadable { file: file.clone(), reason };
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_path(path).map_err(unreadable)?;
    let headers = reader.headers().map_err(unreadable)?.clone();
    let column = |column: &'static str| {
        let found = headers.iter().position(|header| header == column);
        found.ok_or_else(|| InstanceError::NoColumn { file: file.clone(), column })
    };
    let columns = [column("id")?, column("lower")?, column("upper")?, column("size")?];
    let mut instance = Instance::default();
    let mut lines = HashMap::new();
    for record in reader.records() {
        let record = record.map_err(unreadable)?;
        let line = record.position().map_or(0, csv::Position::line);
        let field = |index: usize| record.get(columns[index]).unwrap_or_default();
        let number = |index: usize, column: &'static str| {
            let bad = |_| InstanceError::NotANumber { file: file.clone(), line, column, got: field(index).to_owned() };
            field(index).parse::<u64>().map_err(bad)
        };
        let (lower, upper, size) = (number(1, "lower")?, number(2, "upper")?, number(3, "size")?);
        let (id, file) = (field(0).to_owned(), file.clone());
        if let Some(&first) = lines.get(&id) {
            return Err(InstanceError::Twice { file, line, id, first });
        }
        if size == 0 {
            return Err(InstanceError::NoBytes { file, line, id });
        }
        if upper <= lower {
            return Err(InstanceError::Lifetime { file, line, id, lower, upper });
        }
        lines.insert(id.clone(), line);
        instance.ids.push(id);
        instance.specs.push(BufferSpec::new(usize::try_from(size).unwrap_or(usize::MAX), lower, upper));
    }
    Ok(instance)
}
