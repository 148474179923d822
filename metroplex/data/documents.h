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

// A directory stands for all files below it, in the order of their names. Throws base::Error for what cannot be read.
std::vector<DocumentFile> open_documents(files::FileSystem& disk, const std::vector<std::string>& inputs,
                                         TextFormat format);

class DocumentReader {
 public:
  DocumentReader(const std::vector<DocumentFile>& files, bool split_at_blank_lines, DocumentPosition start)
      : files_(files), split_(split_at_blank_lines), at_(start) {}

  // The next document, in order; false at the end. Blank lines of JSON files are not documents; empty files are.
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

// The text of a document as UTF-8. Throws base::Error naming file, line or byte, and a fix.
std::string document_text(const std::vector<DocumentFile>& files, const RawDocument& document,
                          const std::string& json_key);

}  // namespace metroplex::data
