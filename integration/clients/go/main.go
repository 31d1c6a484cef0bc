// Carries out one operation on one table with iceberg-go's REST catalog:
//
//	client URL WAREHOUSE create|append|evolve|rows NAMESPACE TABLE [KEY VALUE [NOTE]]
//
// A table has the columns key (long) and value (string), and note (string) once it has been evolved.
// Rows are printed as lines of JSON.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	_ "github.com/apache/iceberg-go/catalog/rest"
	"github.com/apache/iceberg-go/table"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string) error {
	properties := map[string]string{"type": "rest", "uri": arguments[0], "warehouse": arguments[1]}
	shop, err := catalog.Load(ctx, "shop", properties)
	if err != nil {
		return err
	}
	name := table.Identifier{arguments[3], arguments[4]}
	if arguments[2] == "create" {
		schema := iceberg.NewSchema(0,
			iceberg.NestedField{ID: 1, Name: "key", Type: iceberg.PrimitiveTypes.Int64},
			iceberg.NestedField{ID: 2, Name: "value", Type: iceberg.PrimitiveTypes.String})
		_, err = shop.CreateTable(ctx, name, schema)
		return err
	}
	loaded, err := shop.LoadTable(ctx, name)
	if err != nil {
		return err
	}
	switch arguments[2] {
	case "append":
		return add(ctx, loaded, arguments[5:])
	case "evolve":
		transaction := loaded.NewTransaction()
		update := transaction.UpdateSchema(true, false)
		update.AddColumn([]string{"note"}, iceberg.PrimitiveTypes.String, "", false, nil)
		if err := update.Commit(); err != nil {
			return err
		}
		_, err = transaction.Commit(ctx)
		return err
	case "rows":
		found, err := loaded.Scan().ToArrowTable(ctx)
		if err != nil {
			return err
		}
		reader := array.NewTableReader(found, -1)
		defer reader.Release()
		for reader.Next() {
			if err := array.RecordToJSON(reader.RecordBatch(), os.Stdout); err != nil {
				return err
			}
		}
		return reader.Err()
	}
	return fmt.Errorf("no such operation: %s", arguments[2])
}

func add(ctx context.Context, loaded *table.Table, values []string) error {
	schema, err := table.SchemaToArrowSchema(loaded.Schema(), nil, false, false)
	if err != nil {
		return err
	}
	builder := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	key, err := strconv.ParseInt(values[0], 10, 64)
	if err != nil {
		return err
	}
	builder.Field(0).(*array.Int64Builder).Append(key)
	for position, value := range values[1:] {
		builder.Field(position + 1).(*array.StringBuilder).Append(value)
	}
	for position := len(values); position < schema.NumFields(); position++ {
		builder.Field(position).AppendNull()
	}
	rows := array.NewTableFromRecords(schema, []arrow.RecordBatch{builder.NewRecordBatch()})
	_, err = loaded.AppendTable(ctx, rows, 1024, nil)
	return err
}
