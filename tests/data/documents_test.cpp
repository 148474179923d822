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
    return test::error_of([&] { texts(scratch, name, content, false); });
  };
  EXPECT_NE(refusal("a.txt", "good\xff").find("a.txt' byte 4: not UTF-8"), std::string::npos);
  EXPECT_NE(refusal("a.jsonl", "{\"text\": \"a\"}\n{\"text\": 3}\n").find("line 2 holds no string"),
            std::string::npos);
  EXPECT_NE(refusal("a.jsonl", "\n\n{\"txt\": \"a\"}\n").find("line 3 has no key 'text'"), std::string::npos);
  EXPECT_NE(refusal("a.jsonl", "[1]\n").find("line 1 is not a JSON object"), std::string::npos);
  EXPECT_NE(refusal("a.jsonl", "{\"text\": \"\xff\"}\n").find("line 1 is not JSON in UTF-8"), std::string::npos);
  EXPECT_NE(refusal("a.jsonl", "{\"text\": \"half").find("line 1 is not JSON"), std::string::npos);
}

}  // namespace
}  // namespace metroplex::data::documents_test
