// Splits input files into documents. Text: a document is a file, or each section between blank lines. JSON lines:
// each line is a document, the text of one key. Files are mapped and split in order; worker threads decode them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "files/file_system.h"

namespace metroplex::data {

enum class TextFormat { by_name, text, jsonl };  // by_name: .jsonl, .ndjson and .json are JSON lines

struct DocumentFile {
  std::string path;
  bool jsonl = false;
  files::Bytes bytes;
};

struct RawDocument {
  size_t file = 0;
  int64_t offset = 0;     // of its first byte in the file
  std::string_view text;  // the document, or a line of JSON
};

struct DocumentPosition {
  size_t file = 0;
  int64_t offset = 0;
};

// A directory is expanded to all files in its tree, in name order. Hidden files (.name) are skipped and counted in
// `hidden`. Throws base::Error for a file that is unreadable or not text (compressed, UTF-16).
std::vector<DocumentFile> open_documents(files::FileSystem& disk, const std::vector<std::string>& inputs,
                                         TextFormat format, int64_t* hidden = nullptr);

class DocumentReader {
 public:
  DocumentReader(const std::vector<DocumentFile>& files, bool split_at_blank_lines, DocumentPosition start)
      : files_(files), split_(split_at_blank_lines), at_(start) {}

  // Reads the next document in order; returns false at the end. Blank lines of JSON files are not documents; empty
  // files are. Excludes a byte order mark, and the line end before a blank line.
  bool next(RawDocument& document);
  DocumentPosition position() const { return at_; }

 private:
  const std::vector<DocumentFile>& files_;
  bool split_;
  DocumentPosition at_;
};

// Returns "'FILE' line N", for messages.
std::string document_place(const std::vector<DocumentFile>& files, const RawDocument& document);

// Returns the text of a document as UTF-8. Throws base::Error with file, line or byte, and a fix. `surrogates` counts
// unpaired escaped surrogates, each read as U+FFFD.
std::string document_text(const std::vector<DocumentFile>& files, const RawDocument& document,
                          const std::string& json_key, int64_t* surrogates = nullptr);

}  // namespace metroplex::data
