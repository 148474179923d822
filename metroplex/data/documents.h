// Splits input files into documents. Text: a file is a document, or each of its parts between blank lines. JSON
// lines: each line is a document, the text of one key. Files are mapped and split in order; decoding runs on worker
// threads.
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

// A directory stands for all files below it, in the order of their names, without hidden ones (.name), which
// `hidden` counts. Throws base::Error for a file that cannot be read or is no text (compressed, UTF-16).
std::vector<DocumentFile> open_documents(files::FileSystem& disk, const std::vector<std::string>& inputs,
                                         TextFormat format, int64_t* hidden = nullptr);

class DocumentReader {
 public:
  DocumentReader(const std::vector<DocumentFile>& files, bool split_at_blank_lines, DocumentPosition start)
      : files_(files), split_(split_at_blank_lines), at_(start) {}

  // The next document, in order; false at the end. Blank lines of JSON files are not documents; empty files are. A
  // byte order mark is not part of a document, nor is the line end of a document that ends at a blank line.
  bool next(RawDocument& document);
  // Where reading continues.
  DocumentPosition position() const { return at_; }

 private:
  const std::vector<DocumentFile>& files_;
  bool split_;
  DocumentPosition at_;
};

// "'FILE' line N", for messages.
std::string document_place(const std::vector<DocumentFile>& files, const RawDocument& document);

// The text of a document as UTF-8. Throws base::Error naming file, line or byte, and a fix. `surrogates` counts the
// escaped surrogates without a pair, each of which is read as U+FFFD.
std::string document_text(const std::vector<DocumentFile>& files, const RawDocument& document,
                          const std::string& json_key, int64_t* surrogates = nullptr);

}  // namespace metroplex::data
