"""Clauses that are carried out here. sqlglot knows many more, and hands over each as an argument of its expression.

A clause that is read and then left out changes rows: ``SELECT * FROM t VERSION AS OF 5`` would read the present rows.
So the table below names each expression and each of its arguments that this package evaluates; everything else is
refused.
"""

from __future__ import annotations

from sqlglot import ErrorLevel
from sqlglot import expressions as sql

_ARGUMENTS: dict[type[sql.Expr], str] = {
    # Statements and queries.
    sql.Delete: "this where",
    sql.Update: "this expressions where",
    sql.Select: "expressions from_ where limit",
    sql.Values: "expressions",
    sql.Tuple: "expressions",
    sql.From: "this",
    sql.Table: "this db alias",
    sql.TableAlias: "this",
    sql.Where: "this",
    sql.Limit: "expression",
    # Names.
    sql.Alias: "this alias",
    sql.Star: "",
    sql.Column: "this table db",
    sql.Identifier: "this quoted",
    # Conditions.
    sql.And: "this expression",
    sql.Or: "this expression",
    sql.Not: "this",
    sql.Paren: "this",
    sql.EQ: "this expression",
    sql.NEQ: "this expression",
    sql.LT: "this expression",
    sql.LTE: "this expression",
    sql.GT: "this expression",
    sql.GTE: "this expression",
    sql.NullSafeEQ: "this expression",
    sql.NullSafeNEQ: "this expression",
    sql.Is: "this expression",
    sql.In: "this expressions",
    sql.Between: "this low high",
    sql.Like: "this expression negate",
    sql.Escape: "this expression",
    # Constants. What `safe` would make NULL is refused, and so is the NULL that `coalesce` would leave out.
    sql.Null: "",
    sql.Boolean: "this",
    sql.Literal: "this is_string",
    sql.Neg: "this",
    sql.Concat: "expressions safe",
    sql.HexString: "this",
    sql.Unhex: "this",
    sql.Date: "this",
    sql.TsOrDsToDate: "this safe",
    sql.Cast: "this to",
    sql.TryCast: "this to safe",
    sql.Array: "expressions",
    sql.VarMap: "keys values",
    sql.Struct: "expressions",
    sql.PropertyEQ: "this expression",
    # Types. A comment changes no value.
    sql.DataType: "this expressions nested",
    sql.DataTypeParam: "this",
    sql.ColumnDef: "this kind constraints",
    sql.ColumnConstraint: "kind",
    sql.CommentColumnConstraint: "this",
}

_CARRIED_OUT = {kind: frozenset(arguments.split()) for kind, arguments in _ARGUMENTS.items()}


def unknown(tree: sql.Expr) -> str | None:
    """Return the first clause of *tree* that is not carried out here, as it could be written; None without one."""
    for node in tree.walk():
        if (known := _CARRIED_OUT.get(type(node))) is None:
            return _text(node)
        for key, value in node.args.items():
            if value and key not in known:
                return _text(value) if isinstance(value, sql.Expr) else key.upper().strip("_")
    return None


def _text(clause: sql.Expr) -> str:
    return clause.sql(dialect="hive", unsupported_level=ErrorLevel.IGNORE).strip()
