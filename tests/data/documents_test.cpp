#include "data/documents.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "data/scratch.h"
#include "support/error_of.h"

namespace metroplex::data::documents_test {
namespace {

std::vector<std::string> texts(const Scratch& scratch, const std::string& name, const std::string& content,
                               bool split) {
  files::PosixFileSystem disk;
  const auto files = open_documents(disk, {scratch.write(name, content)}, TextFormat::by_name);
  DocumentReader reader(files, split, {});
  std::vector<std::string> out;
  RawDocument document;
  while (reader.next(document)) out.push_back(document_text(files, document, "text"));
  return out;
}

using Strings = std::vector<std::string>;

TEST(Documents, TakeATextFileAsOneDocument) {
  const Scratch scratch;
  EXPECT_EQ(texts(scratch, "a.txt", "one\n\ntwo\n", false), Strings{"one\n\ntwo\n"});
  EXPECT_EQ(texts(scratch, "a.txt", "", false), Strings{""});
}

TEST(Documents, SplitTextAtBlankLines) {
  const Scratch scratch;
  EXPECT_EQ(texts(scratch, "a.txt", "\n  \none\nmore\n\n\t\n\ntwo", true), (Strings{"one\nmore", "two"}));
  EXPECT_EQ(texts(scratch, "a.txt", " \n\n", true), Strings{});
}

TEST(Documents, ReadALineOfJsonEach) {
  const Scratch scratch;
  EXPECT_EQ(texts(scratch, "a.jsonl", "{\"text\": \"a\\nb\"}\n\n{\"x\": 1, \"text\": \"\\u00e9\"}\r\n", false),
            (Strings{"a\nb", "\xC3\xA9"}));
}

TEST(Documents, GoOnFromAPosition) {
  const Scratch scratch;
  files::PosixFileSystem disk;
  const auto files = open_documents(disk, {scratch.write("a.txt", "1\n\n2\n\n3"), scratch.write("b.txt", "4\n\n5\n")},
                                    TextFormat::text);
  DocumentReader reader(files, true, {});
  RawDocument document;
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(reader.next(document));
  DocumentReader second(files, true, reader.position());
  Strings rest;
  while (second.next(document)) rest.push_back(std::string(document.text));
  EXPECT_EQ(rest, (Strings{"3", "4", "5"}));
}

TEST(Documents, TakeFoldersInTheOrderOfTheirNames) {
  const Scratch scratch;
  std::filesystem::create_directories(scratch / "d/sub");
  scratch.write("d/b.txt", "b");
  scratch.write("d/a.txt", "a");
  scratch.write("d/sub/c.jsonl", "{\"text\": \"c\"}");
  files::PosixFileSystem disk;
  const auto files = open_documents(disk, {scratch / "d"}, TextFormat::by_name);
  ASSERT_EQ(files.size(), 3u);
  EXPECT_EQ(files[0].bytes.text(), "a");
  EXPECT_TRUE(files[2].jsonl);
}

TEST(Documents, NameTheByteOrLineThatIsWrong) {
  const Scratch scratch;
  const auto refusal = [&](const std::string& name, const std::string& content) -> std::string {
    return test::catch_error([&] { texts(scratch, name, content, false); });
  };
  EXPECT_NE(refusal("a.txt", "good\xff").find("a.txt' byte 4: not UTF-8"), std::string::npos);
  EXPECT_NE(refusal("a.jsonl", "{\"text\": \"a\"}\n{\"text\": 3}\n")
                .find("line 2 has a value of 'text' that is not a string"),
            std::string::npos);
  EXPECT_NE(refusal("a.jsonl", "\n\n{\"txt\": \"a\"}\n").find("line 3 has no key 'text'"), std::string::npos);
  EXPECT_NE(refusal("a.jsonl", "3\n").find("line 1 is not a JSON object"), std::string::npos);
  EXPECT_NE(refusal("a.jsonl", "{\"text\": \"\xff\"}\n").find("line 1 is not JSON in UTF-8"), std::string::npos);
  EXPECT_NE(refusal("a.jsonl", "{\"text\": \"half").find("line 1 is not JSON"), std::string::npos);
}

TEST(Documents, DropByteOrderMarksAndCarriageReturns) {
  const Scratch scratch;
  const std::string mark = "\xef\xbb\xbf";
  EXPECT_EQ(texts(scratch, "a.txt", mark + "abc", false), Strings{"abc"});
  EXPECT_EQ(texts(scratch, "a.txt", mark + "a\n\nb", true), (Strings{"a", "b"}));
  EXPECT_EQ(texts(scratch, "a.txt", mark, false), Strings{""});
  EXPECT_EQ(texts(scratch, "a.jsonl", mark + "{\"text\": \"a\"}\n", false), Strings{"a"});
  EXPECT_EQ(texts(scratch, "a.txt", "ab\r\n\r\ncd\r\nef\r\n", true), (Strings{"ab", "cd\r\nef"}));
}

TEST(Documents, SkipHiddenFilesOfFolders) {
  const Scratch scratch;
  std::filesystem::create_directories(scratch / "d/.git");
  for (const char* name : {"d/a.txt", "d/.hidden.txt", "d/.git/b.txt"}) scratch.write(name, "a");
  files::PosixFileSystem disk;
  int64_t hidden = 0;
  EXPECT_EQ(open_documents(disk, {scratch / "d"}, TextFormat::by_name, &hidden).size(), 1u);
  EXPECT_EQ(hidden, 2);
  EXPECT_EQ(open_documents(disk, {scratch / "d/.hidden.txt"}, TextFormat::by_name, &hidden).size(), 1u) << "named";
  EXPECT_EQ(hidden, 0);
}

TEST(Documents, ReadJsonAsPythonDoes) {
  const Scratch scratch;
  EXPECT_EQ(texts(scratch, "a.jsonl", R"({"text": "NaN", "a": NaN, "b": [-Infinity, Infinity]})", false),
            Strings{"NaN"});
  EXPECT_EQ(texts(scratch, "a.jsonl", R"({"text": "a\ud800b\\ud800 \ud83d\ude00\uDC00"})", false),
            Strings{"a\xEF\xBF\xBD"
                    "b\\ud800 \xF0\x9F\x98\x80\xEF\xBF\xBD"});
  files::PosixFileSystem disk;
  const auto files = open_documents(disk, {scratch / "a.jsonl"}, TextFormat::by_name);
  DocumentReader reader(files, false, {});
  RawDocument document;
  ASSERT_TRUE(reader.next(document));
  int64_t surrogates = 0;
  document_text(files, document, "text", &surrogates);
  EXPECT_EQ(surrogates, 2);
}

TEST(Documents, NameTheFormOfAFileThatIsNoJsonLines) {
  const Scratch scratch;
  struct Case {
    const char* name;
    std::string content;
    const char* form;
  };
  for (const Case& item : {Case{"a.json", "[{\"text\": \"a\"}]\n", "a JSON array"},
                           Case{"a.json", "[\n{\"text\": \"a\"}\n]\n", "a JSON array"},
                           Case{"a.json", "[\n  {\n\"text\": \"a\"}\n]\n", "a JSON array"},
                           Case{"a.json", "\xef\xbb\xbf{\n  \"text\": \"a\"\n}\n", "multi-line"},
                           Case{"a.jsonl", "{\"text\": \"a\",\n \"b\": 1}\n", "multi-line"},
                           Case{"a.jsonl", "{\"text\": \"a\"},\n{\"text\": \"b\"},\n", "remove the commas"},
                           Case{"a.jsonl.gz", "\x1f\x8b\x08", "gzip"},
                           Case{"a.jsonl.zst", "\x28\xb5\x2f\xfd", "zstd"},
                           Case{"a.txt.bz2", "BZh91AY&SY", "bzip2"},
                           Case{"a.xz", std::string("\xfd\x37zXZ\0", 6), "xz"},
                           Case{"a.txt", std::string("\xff\xfe\x61\0", 4), "UTF-16"},
                           Case{"a.parquet", "PAR1....PAR1", "Parquet"},
                           Case{"a.tar", std::string(257, 'a') + "ustar", "tar archive"},
                           Case{"a.db", std::string("SQLite format 3\0", 16), "SQLite"},
                           Case{"a.arrow", "ARROW1", "Arrow file"},
                           Case{"a.arrows", "\xff\xff\xff\xff", "Arrow stream"},
                           Case{"a.pdf", "%PDF-1.4", "PDF"},
                           Case{"a.txt", std::string("a\0b\0", 4), "UTF-16LE"},
                           Case{"a.txt", std::string("\0a\0b", 4), "UTF-16BE"},
                           Case{"a.csv", "text\none\n", "a table"},
                           Case{"a.tsv", "text\none\n", "--format text"}}) {
    const std::string error = test::catch_error([&] { texts(scratch, item.name, item.content, false); });
    EXPECT_NE(error.find(item.form), std::string::npos) << item.name << ": " << error;
    EXPECT_NE(error.find(item.name), std::string::npos) << error;
  }
  EXPECT_EQ(texts(scratch, "a.txt", std::string("ab\0c", 4), false), Strings{std::string("ab\0c", 4)}) << "text";
}

}  // namespace
}  // namespace metroplex::data::documents_test
