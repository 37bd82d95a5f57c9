// Ledgercheck verifies a ledger with Go's own sumdb/note and tlog, and with nothing of this project.
//
// It reads one JSON object from standard input. It prints what it has accepted and exits with 0, or
// says what it refuses and exits with 1.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

type input struct {
	VerifierKey string   // as in sumdb/note
	Checkpoint  []byte   // a signed note
	Older       []byte   // another one of the same log
	Growth      [][]byte // the proof that Checkpoint has grown from Older
	Index       int64
	Entry       []byte
	Path        [][]byte // the audit path of Entry in Checkpoint
	Prefix      string   // the folder with the tiles
}

func main() {
	var in input
	err := json.NewDecoder(os.Stdin).Decode(&in)
	if err == nil {
		err = check(in)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("accepted")
}

func check(in input) error {
	tree, err := open(in.Checkpoint, in.VerifierKey)
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	path := tlog.RecordProof(hashes(in.Path))
	record := tlog.RecordHash(in.Entry)
	if err := tlog.CheckRecord(path, tree.N, tree.Hash, in.Index, record); err != nil {
		return fmt.Errorf("record: %w", err)
	}
	older, err := open(in.Older, in.VerifierKey)
	if err != nil {
		return fmt.Errorf("older checkpoint: %w", err)
	}
	growth := tlog.TreeProof(hashes(in.Growth))
	if err := tlog.CheckTree(growth, tree.N, tree.Hash, older.N, older.Hash); err != nil {
		return fmt.Errorf("growth: %w", err)
	}
	return checkTiles(in, tree, older, path, growth)
}

// checkTiles lets Go read the tiles, authenticate them against the root, and make both proofs itself.
func checkTiles(in input, tree, older tlog.Tree, path tlog.RecordProof, growth tlog.TreeProof) error {
	reader := tlog.TileHashReader(tree, tiles(in.Prefix))
	own, err := tlog.ProveRecord(tree.N, in.Index, reader)
	if err != nil {
		return fmt.Errorf("tiles: %w", err)
	}
	ownGrowth, err := tlog.ProveTree(tree.N, older.N, reader)
	if err != nil {
		return fmt.Errorf("tiles: %w", err)
	}
	if !slices.Equal(own, path) || !slices.Equal(ownGrowth, growth) {
		return errors.New("tiles: Go makes other proofs of them")
	}
	return nil
}

// open verifies the signature of a checkpoint and reads its three lines.
func open(raw []byte, verifierKey string) (tlog.Tree, error) {
	verifier, err := note.NewVerifier(verifierKey)
	if err != nil {
		return tlog.Tree{}, err
	}
	opened, err := note.Open(raw, note.VerifierList(verifier))
	if err != nil {
		return tlog.Tree{}, err
	}
	lines := strings.Split(opened.Text, "\n")
	if len(lines) != 4 || lines[0] != verifier.Name() {
		return tlog.Tree{}, errors.New("not three lines, or another origin")
	}
	size, err := strconv.ParseInt(lines[1], 10, 64)
	if err != nil {
		return tlog.Tree{}, err
	}
	hash, err := tlog.ParseHash(lines[2])
	return tlog.Tree{N: size, Hash: hash}, err
}

func hashes(raw [][]byte) []tlog.Hash {
	converted := make([]tlog.Hash, 0, len(raw))
	for _, value := range raw {
		var hash tlog.Hash
		copy(hash[:], value)
		converted = append(converted, hash)
	}
	return converted
}

// tiles reads the tiles of C2SP tlog-tiles: always of height 8, which is why their paths leave it out.
type tiles string

func (prefix tiles) Height() int { return 8 }

func (prefix tiles) ReadTiles(wanted []tlog.Tile) ([][]byte, error) {
	var contents [][]byte
	for _, tile := range wanted {
		path := strings.Replace(tile.Path(), "tile/8/", "tile/", 1)
		content, err := os.ReadFile(filepath.Join(string(prefix), path))
		if err != nil {
			return nil, err
		}
		contents = append(contents, content)
	}
	return contents, nil
}

func (prefix tiles) SaveTiles([]tlog.Tile, [][]byte) {}
