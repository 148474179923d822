// Bash functions that a trial defines before a launch script: programs that change files (tee, cp, mv, rm, touch).
// The files exist in memory only (trial_files.h). A file that an unknown program would change gets a mark as its
// content.
#pragma once

namespace metroplex::megatron {

inline constexpr const char* kLaunchFiles = R"BASH(
metroplex_tee() {
  local mpx_text mpx_file mpx_appends=0
  while [[ ${1-} == -?* ]]; do
    [[ $1 == --append || $1 == -[!-]*a* || $1 == -a ]] && mpx_appends=1
    shift
  done
  mpx_text=$(metroplex_cat; builtin printf x)
  mpx_text=${mpx_text%x}
  for mpx_file; do
    if [[ $mpx_appends == 1 ]]; then
      builtin printf '%s' "$mpx_text" >> "$mpx_file"
    else
      builtin printf '%s' "$mpx_text" >| "$mpx_file"
    fi
  done
  builtin printf '%s' "$mpx_text"
}

metroplex_touch() {
  local mpx_file
  for mpx_file; do
    [[ $mpx_file == -?* || -e $mpx_file ]] || builtin : >> "$mpx_file"
  done
}
# Opening this path removes the file from the trial (kRemoveFolder of trial.h).
metroplex_rm() {
  local mpx_file
  for mpx_file; do
    [[ $mpx_file == -?* ]] || builtin : >> "/dev/metroplex-remove/$mpx_file"
  done
}
metroplex_unlink() { metroplex_rm "$@"; }
metroplex_cp() { metroplex_copy cp "$@"; }
metroplex_mv() { metroplex_copy mv "$@"; }
metroplex_ln() { metroplex_copy ln "$@"; }
# Folders stay as they are.
metroplex_copy() {  # TOOL, its words
  local mpx_tool=$1 mpx_file mpx_to mpx_files=()
  shift
  for mpx_file; do
    [[ $mpx_file == -t* || $mpx_file == --target-directory* ]] && return 0
    [[ $mpx_file == -?* ]] || mpx_files+=("$mpx_file")
  done
  [[ ${#mpx_files[@]} -ge 2 ]] || return 0
  for mpx_file in "${mpx_files[@]:0:${#mpx_files[@]}-1}"; do
    mpx_to=${mpx_files[-1]}
    [[ -d $mpx_to || $mpx_to == */ ]] && mpx_to=${mpx_to%/}/${mpx_file##*/}
    [[ $mpx_tool == ln && $mpx_file != /* && $mpx_to == */* ]] && mpx_file=${mpx_to%/*}/$mpx_file
    [[ -f $mpx_file && ! $mpx_file -ef $mpx_to ]] || continue
    metroplex_cat "$mpx_file" >| "$mpx_to"
    [[ $mpx_tool == mv ]] && metroplex_rm "$mpx_file"
  done
  return 0
}

# Leaves a mark in the files that a program, which does not run, would change: editors with an option to edit in place,
# and the file after -o or --output.
metroplex_spoil() {
  local mpx_tool=${1##*/} mpx_edits=0 mpx_word mpx_previous= mpx_mark mpx_files=()
  case $mpx_tool in
    ed | ex | patch | dos2unix | unix2dos | truncate) mpx_edits=1 ;;
  esac
  for mpx_word in "${@:2}"; do
    case $mpx_tool:$mpx_word in
      sed:-[!-]*i* | sed:-i* | sed:--in-place*) mpx_edits=1 ;;
      perl:-*i* | ruby:-*i* | yq:-*i* | sd:* | *awk:inplace | crudini:--set) mpx_edits=1 ;;
      *:--output=* | *:--output-document=* | dd:of=*) mpx_files+=("${mpx_word#*=}") ;;
    esac
    [[ $mpx_previous == -[oO] || $mpx_previous == --output ]] && mpx_files+=("$mpx_word")
    mpx_previous=$mpx_word
  done
  [[ $mpx_edits == 1 ]] && mpx_files+=("${@:2}")
  for mpx_word in "${mpx_files[@]}"; do
    [[ $mpx_word == -* || -z $mpx_word || -d $mpx_word ]] && continue
    [[ $mpx_edits == 1 && ! -f $mpx_word ]] && continue
    mpx_mark=@not@run@$mpx_tool@${metroplex_line-}@${metroplex_file//[!A-Za-z0-9_.+-]/_}@
    metroplex_record "$mpx_mark" '#'
    metroplex_vary_mark
    builtin printf '%s\n' "$mpx_mark" >| "$mpx_word"
  done
}
)BASH";

}  // namespace metroplex::megatron
