// What a rank says to our own launcher through LaunchEnvironment::cause_fd: notes, a line each, that it is ready to
// be stopped and that a signal reached it, and at last the report of why it fails.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace metroplex::comm {

struct Report {
  bool own = false;   // its own failure, not what it suffered from another rank
  int exit_code = 1;  // with which the process is going to end
  std::string cause;
};

// Fits into one write to a pipe.
std::string encode(const Report& report);
// Nothing unless the text is whole.
std::optional<Report> decode_report(const std::string& text);

enum class NoteKind {
  ready,   // from here on a signal stops the rank after a step
  signal,  // a first one reached this rank, not from the launcher
  again    // a second one did
};
struct Note {
  NoteKind kind = NoteKind::ready;
  int signal = 0;
};
// Safe in a signal handler. Does nothing without a launcher (fd -1).
void write_note(int fd, Note note);
// Takes the whole notes off the front of `text`.
std::vector<Note> take_notes(std::string& text);

}  // namespace metroplex::comm
